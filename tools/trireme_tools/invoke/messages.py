"""The request of ``sm invoke``, its body and the headers that describe it; and its answer, or a failure."""

from __future__ import annotations

import json
import mimetypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pybase64

from sm.errors import CommandError

#: Characters shown of an error that is not JSON.
MAX_SHOWN = 300


@dataclass(frozen=True)
class InvokeReply:
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


def to_error(reply: InvokeReply) -> CommandError:
    """Return the container's message as an error of the command."""
    return CommandError(f"the answer is {reply.code}: {reply.sentence}")


EVENT_STREAM = "text/event-stream"
#: The first bytes of picture files, and their content types.
PICTURE_TYPES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}

#: Keys that tell a request from a payload: the first two are of a dispatch request, the last of a v2 request.
REQUEST_KEYS = {"modelname", "payload", "inputs"}


@dataclass(frozen=True)
class InvokeRequest:
    """One request, for any target."""

    body: bytes
    content_type: str
    accept: str = "application/json"
    model: str | None = None
    #: The archive of a multi-model endpoint.
    target_model: str | None = None
    #: The inference component of an endpoint of several.
    component: str | None = None
    #: Parameters of a body that is not JSON; they travel in a header.
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def attributes(self) -> str | None:
        """Return the header that names the model and its parameters."""
        pairs = {**({"modelname": self.model} if self.model else {}), **self.parameters}
        return ";".join(f"{name}={value}" for name, value in pairs.items()) or None

    def with_parameters(self, parameters: Mapping[str, object]) -> InvokeRequest:
        """Return the same request with parameters, where it does not give them itself."""
        if not parameters:
            return self
        if self.content_type != "application/json":
            return replace(self, parameters={**parameters, **self.parameters})
        parsed = json.loads(self.body)
        if not isinstance(parsed, dict) or "payload" not in parsed:
            return self
        parsed["parameters"] = {**parameters, **parsed.get("parameters", {})}
        return replace(self, body=json.dumps(parsed).encode())

    @property
    def sent_picture(self) -> bytes | None:
        """Return the picture in the request; None if there is none."""
        if self.content_type.startswith("image/"):
            return self.body
        if self.content_type != "application/json":
            return None
        parsed = json.loads(self.body)
        payload = parsed.get("payload", parsed) if isinstance(parsed, dict) else None
        for text in (payload.get(name) for name in ("image", "img")) if isinstance(payload, dict) else ():
            if isinstance(text, str):
                try:
                    return pybase64.b64decode(text.partition("base64,")[2] or text, validate=True)
                except ValueError:
                    return None
        return None


def picture_body(file: Path) -> tuple[bytes, str]:
    """Read a picture; return bytes and content type. Raises :class:`CommandError` for other files."""
    content = read_file(file)
    for head, content_type in PICTURE_TYPES.items():
        if content.startswith(head):
            return content, content_type
    raise CommandError(f"{file} is not a JPEG, PNG or WebP picture. Convert it, or send it with --json.")


def file_body(path: Path, content_type: str | None) -> tuple[bytes, str]:
    """Read any file; return bytes and content type, by the file's name if none is given."""
    return read_file(path), content_type or mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def json_body(name: str, model: str | None) -> tuple[bytes, str]:
    """Read JSON from a file or standard input. A bare payload becomes a request for the model."""
    content = sys.stdin.buffer.read() if name == "-" else read_file(Path(name))
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise CommandError(f"{name} is not JSON: {error}.") from None
    if model and not (isinstance(parsed, dict) and REQUEST_KEYS & parsed.keys()):
        content = json.dumps({"modelname": model, "payload": parsed}).encode()
    return content, "application/json"


def read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
