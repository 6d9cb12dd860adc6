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

#: Bytes of the shortest string that is decoded directly. Strings of up to twice this length may be missed.
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
    marker = uuid.uuid4().hex
    decoded_strings: dict[str, DecodedBase64] = {}
    parts, copied_to = [], 0
    for start, end, content in _find_strings(body):
        placeholder = f"{marker}-{len(decoded_strings)}"
        decoded_strings[placeholder] = DecodedBase64(content)
        parts += [body[copied_to:start], placeholder.encode()]
        copied_to = end
    if not decoded_strings:
        return orjson.loads(body)
    try:
        parsed = orjson.loads(b"".join([*parts, body[copied_to:]]))
    except orjson.JSONDecodeError:
        # Parse the original, so that the error names the right position.
        return orjson.loads(body)
    is_payload = is_bare is not None and is_bare(parsed)
    decoded = (
        _fill_payload(parsed, decoded_strings)
        if is_payload
        else _replace_placeholders(parsed, decoded_strings)
    )
    # A placeholder that is still there is a key, or is nested too deep.
    return orjson.loads(body) if decoded_strings else decoded


def _find_strings(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield start, end and decoded content of each long base64 string.

    Base64 between two quotes is a string unless the first quote is escaped: between two strings JSON has at
    least a comma or a colon.
    """
    view, end, probe = memoryview(body), 0, MIN_BYTES
    while probe < len(body):
        start = body.rfind(b'"', end, probe) + 1
        end = body.find(b'"', probe)
        if end < 0:
            return
        if start and end - start >= MIN_BYTES and body[start - 2 : start - 1] != b"\\":
            content = _decode(view[start:end])
            if content is not None:
                yield start, end, content
        probe = end + MIN_BYTES


def _decode(text: memoryview) -> bytes | None:
    """Decode base64; None if it is not base64, or if encoding it again gives another text."""
    try:
        content = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    last = len(content) % 3 or 3
    return content if pybase64.b64encode(content[-last:]) == text[-4:] else None


def _replace_placeholders(parsed: Any, decoded_strings: dict[str, DecodedBase64]) -> Any:
    """Replace the placeholders in ``payload`` by their decoded strings."""
    if isinstance(parsed, dict) and "payload" in parsed:
        parsed["payload"] = _fill_payload(parsed["payload"], decoded_strings)
    return parsed


def _fill_payload(payload: Any, decoded_strings: dict[str, DecodedBase64]) -> Any:
    """Fill one record or a list of them."""
    if isinstance(payload, list):
        return [_fill_record(item, decoded_strings) for item in payload]
    return _fill_record(payload, decoded_strings)


def _fill_record(record: Any, decoded_strings: dict[str, DecodedBase64]) -> Any:
    if isinstance(record, dict):
        return {name: _fill_value(value, decoded_strings) for name, value in record.items()}
    return _fill_value(record, decoded_strings)


def _fill_value(value: Any, decoded_strings: dict[str, DecodedBase64]) -> Any:
    """Return the decoded string if the value is its placeholder, and remove it from ``decoded_strings``."""
    return decoded_strings.pop(value, value) if isinstance(value, str) else value
