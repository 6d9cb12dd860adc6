"""Decode large base64 fields directly from the JSON body, to save two copies of the text.

A JSON parser copies the body and creates a string for each field. So long base64 strings are decoded first,
and the parser sees a short placeholder instead of each.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pybase64

#: Bytes of a string that is worth it. Strings of up to twice this length may be missed.
MIN_BYTES = 2**20


class DecodedBase64:
    """A long base64 string, decoded."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def text(self) -> str:
        """The original text."""
        return pybase64.b64encode(self.content).decode()


def parse(body: bytes, is_bare: Callable[[Any], bool] | None = None) -> Any:
    """Parse JSON, with :class:`DecodedBase64` for long strings in ``payload``, in its values or in its items.

    ``is_bare`` decides whether a JSON value is the payload itself. If long strings occur elsewhere, or the
    body is not JSON, the whole body goes to the parser, which raises :class:`orjson.JSONDecodeError`.
    """
    if len(body) < MIN_BYTES:
        return orjson.loads(body)
    word = uuid.uuid4().hex
    cut: dict[str, DecodedBase64] = {}
    pieces, copied_to = [], 0
    for start, end, content in _strings(body):
        name = f"{word}-{len(cut)}"
        cut[name] = DecodedBase64(content)
        pieces += [body[copied_to:start], name.encode()]
        copied_to = end
    if not cut:
        return orjson.loads(body)
    try:
        parsed = orjson.loads(b"".join([*pieces, body[copied_to:]]))
    except orjson.JSONDecodeError:
        # Parse the original, so that the error names the right position.
        return orjson.loads(body)
    bare = is_bare is not None and is_bare(parsed)
    decoded = _payload(parsed, cut) if bare else _replace_placeholders(parsed, cut)
    # A placeholder that is still there is a key, or is nested too deep.
    return orjson.loads(body) if cut else decoded


def _strings(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield start, end and decoded content of each long base64 string.

    Text between two quotes that is base64 is a string unless the first quote is escaped: between two strings
    JSON has at least a comma or a colon.
    """
    view, end, middle = memoryview(body), 0, MIN_BYTES
    while middle < len(body):
        start = body.rfind(b'"', end, middle) + 1
        end = body.find(b'"', middle)
        if end < 0:
            return
        if start and end - start >= MIN_BYTES and body[start - 2 : start - 1] != b"\\":
            content = _decode(view[start:end])
            if content is not None:
                yield start, end, content
        middle = end + MIN_BYTES


def _decode(text: memoryview) -> bytes | None:
    """Decode base64; None if it is not base64, or if encoding it again gives another text."""
    try:
        content = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    last = len(content) % 3 or 3
    return content if pybase64.b64encode(content[-last:]) == text[-4:] else None


def _replace_placeholders(parsed: Any, cut: dict[str, DecodedBase64]) -> Any:
    """Put the decoded strings from ``cut`` back in place of their placeholders."""
    if isinstance(parsed, dict) and "payload" in parsed:
        parsed["payload"] = _payload(parsed["payload"], cut)
    return parsed


def _payload(payload: Any, cut: dict[str, DecodedBase64]) -> Any:
    """Fill one record or a list of them."""
    if isinstance(payload, list):
        return [_record(item, cut) for item in payload]
    return _record(payload, cut)


def _record(record: Any, cut: dict[str, DecodedBase64]) -> Any:
    if isinstance(record, dict):
        return {name: _value(value, cut) for name, value in record.items()}
    return _value(record, cut)


def _value(value: Any, cut: dict[str, DecodedBase64]) -> Any:
    return cut.pop(value, value) if isinstance(value, str) else value
