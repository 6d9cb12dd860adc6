"""What came back."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sm.errors import StartError

#: Characters of an error that is no JSON.
MAX_SHOWN = 300


@dataclass(frozen=True)
class Reply:
    """An answer of the container, an error's too; ``seconds`` from the first byte out to the last one in."""

    status: int
    content_type: str
    body: bytes
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status < 400

    @property
    def code(self) -> str:
        """What a table of errors counts: the status, with the slug where there is one."""
        slug = self._member("code")
        return f"{self.status} {slug}" if slug else str(self.status)

    @property
    def sentence(self) -> str:
        """An error's own words, those of its JSON where it has some."""
        return self._member("error") or self._member("message") or self._text()

    def _text(self) -> str:
        text = " ".join(self.body.decode(errors="replace").split())
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."

    def _member(self, name: str) -> str:
        try:
            document = json.loads(self.body)
        except ValueError:
            return ""
        found = document.get(name) if isinstance(document, dict) else None
        return found if isinstance(found, str) else ""


class NoReply(StartError):
    """Nobody answered: a sentence for a person, and a short ``code`` for a table."""

    def __init__(self, sentence: str, code: str = "no answer") -> None:
        super().__init__(sentence)
        self.code = code


def failed(reply: Reply) -> StartError:
    """The container's own sentence, as an error of the command."""
    return StartError(f"the answer is {reply.code}: {reply.sentence}")
