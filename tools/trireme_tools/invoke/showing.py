"""Show an answer to people: JSON that fits the terminal, pictures as files."""

from __future__ import annotations

import binascii
import itertools
import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pybase64

from sm.errors import CommandError
from trireme_tools.invoke.messages import InvokeReply

#: Endings of files that the standard library does not know, or not in every version of Python.
ENDINGS = {
    "application/x-npy": ".npy",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "audio/webm": ".weba",
    "image/webp": ".webp",
    "video/ogg": ".ogv",
}
#: Columns of a value before it is spread over lines.
MAX_COLUMNS = 100


def format_reply(reply: InvokeReply, name: str, folder: Path) -> Iterator[str]:
    """Yield the lines of an answer. Binary bodies are written to ``folder``, and their name is shown."""
    if reply.content_type.startswith("text/"):
        yield reply.body.decode(errors="replace").rstrip("\n")
        return
    try:
        document = json.loads(reply.body)
    except ValueError:
        yield f"{len(reply.body)} bytes, {reply.content_type}: {save_body(reply, name, folder)}"
        return
    yield from format_json(save_files(document, name, folder))


def format_json(value: Any, indent: int = 0, label: str = "", end: str = "") -> Iterator[str]:
    """Format JSON on as few lines as fit: a row of numbers stays one line."""
    room, flat = " " * indent, json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or indent + len(label + flat) <= MAX_COLUMNS:
        yield f"{room}{label}{flat}{end}"
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    members = (
        [(f"{json.dumps(key)}: ", member) for key, member in value.items()]
        if isinstance(value, dict)
        else [("", member) for member in value]
    )
    yield f"{room}{label}{opening}"
    for place, (key, member) in enumerate(members, 1):
        yield from format_json(member, indent + 2, key, "," if place < len(members) else "")
    yield f"{room}{closing}{end}"


def save_files(value: Any, name: str, folder: Path) -> Any:
    """Write each picture and each encoded body to a file, and put its name in the place of the base64."""
    if isinstance(value, list):
        return [save_files(member, name, folder) for member in value]
    if not isinstance(value, dict):
        return value
    key = next((key for key in ("image", "body") if isinstance(value.get(key), str)), None)
    kind = value.get("content_type")
    if key and isinstance(kind, str) and "/" in kind:
        try:
            body = pybase64.b64decode(value[key], validate=True)
        except binascii.Error:
            return value
        return {**value, key: str(save_body(InvokeReply(200, kind, body), name, folder))}
    return {key: save_files(member, name, folder) for key, member in value.items()}


def save_body(reply: InvokeReply, name: str, folder: Path) -> Path:
    """Write the body to the first free name of ``name``, ``name-2``, …; files are never overwritten."""
    kind = reply.content_type.partition(";")[0].strip().lower()
    suffix = ENDINGS.get(kind) or mimetypes.guess_extension(kind)
    for number in itertools.count(1):
        place = folder / f"{name}{f'-{number}' if number > 1 else ''}{suffix or '.bin'}"
        try:
            with place.open("xb") as file:
                _write(file, reply.body, place)
            return place
        except FileExistsError:
            continue
        except OSError as error:
            raise CommandError(f"the answer cannot be written to {place}: {error.strerror}.") from None
    raise AssertionError("numbers have no end")


def _write(file: IO[bytes], body: bytes, place: Path) -> None:
    try:
        file.write(body)
        file.flush()
    except OSError:
        place.unlink()  # half a picture is none
        raise


def event_data(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the data of each server-sent event. Raises :class:`CommandError` for an error event."""
    partial, kind = b"", b""
    for chunk in chunks:
        *lines, partial = (partial + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.partition(b": ")
            if field == b"event":
                kind = value
            elif kind == b"error" and field == b"data":
                raise CommandError(
                    f"the stream broke: {InvokeReply(500, 'application/json', value).sentence}"
                )
            elif line:
                yield (value if field == b"data" else line).decode(errors="replace")
    if partial:
        yield partial.decode(errors="replace")
