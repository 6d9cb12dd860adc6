"""What is asked: the body of a request, and the headers that say what it is."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError

EVENTS = "text/event-stream"
#: How a picture's file begins, and its content type.
PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}

#: What tells a request from a payload: a dispatch request has one of the first two, a v2 request the last.
WHOLE = {"modelname", "payload", "inputs"}


@dataclass(frozen=True)
class Question:
    """One request, whoever it goes to."""

    body: bytes
    content_type: str
    accept: str = "application/json"
    model: str | None = None
    #: The archive of a multi-model endpoint.
    target_model: str | None = None

    @property
    def attributes(self) -> str | None:
        """The header that names the model, whatever the body is."""
        return f"modelname={self.model}" if self.model else None


def picture(file: Path) -> tuple[bytes, str]:
    """The file's bytes and content type; :class:`StartError` if it is none that is taken."""
    content = read(file)
    for head, content_type in PICTURES.items():
        if content.startswith(head):
            return content, content_type
    raise StartError(f"{file} is no JPEG, PNG or WebP picture. Convert it, or send it with --json.")


def text(words: str) -> tuple[bytes, str]:
    return words.encode(), "text/plain"


def document(name: str, model: str | None) -> tuple[bytes, str]:
    """A file's JSON, or that of standard input. A model's payload alone becomes a request for it."""
    content = sys.stdin.buffer.read() if name == "-" else read(Path(name))
    try:
        found = json.loads(content)
    except ValueError as error:
        raise StartError(f"{name} is not JSON: {error}.") from None
    if model and not (isinstance(found, dict) and WHOLE & found.keys()):
        content = json.dumps({"modelname": model, "payload": found}).encode()
    return content, "application/json"


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StartError(f"{file} cannot be read: {error.strerror}.") from None
