"""Answers and failures of a request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sm.errors import CommandError

#: Characters shown of an error that is not JSON.
MAX_SHOWN = 300


@dataclass(frozen=True)
class Reply:
    """An answer of the container, also an error; ``seconds`` from the first byte sent to the last
    received.
    """

    status: int
    content_type: str
    body: bytes
    seconds: float = 0.0

    @property
    def is_success(self) -> bool:
        return self.status < 400

    @property
    def code(self) -> str:
        """The status, with the error's slug if there is one; errors are counted by it."""
        slug = self._member("code")
        return f"{self.status} {slug}" if slug else str(self.status)

    @property
    def sentence(self) -> str:
        """The error's own message, from its JSON if possible."""
        return self._member("error") or self._member("message") or self._text()

    def member(self, name: str) -> Any:
        """Return a member of the answer's JSON; None if it has none."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return None
        return document.get(name) if isinstance(document, dict) else None

    def _text(self) -> str:
        text = " ".join(self.body.decode(errors="replace").split())
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."

    def _member(self, name: str) -> str:
        member = self.member(name)
        return member if isinstance(member, str) else ""


class NoReply(CommandError):
    """No answer: a sentence for people, and a short ``code`` for the table."""

    def __init__(self, sentence: str, code: str = "no answer") -> None:
        super().__init__(sentence)
        self.code = code


def to_error(reply: Reply) -> CommandError:
    """Return the container's message as an error of the command."""
    return CommandError(f"the answer is {reply.code}: {reply.sentence}")
