"""Decode a large base64 field where it lies in the JSON body: as text it would be in memory twice more.

The parser copies what it parses, and its strings are another copy. So long strings of base64 are decoded out
of the body, and a short word is parsed in the place of each.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pybase64

#: Bytes of a string that is worth it. Shorter ones than twice as long may be missed.
MIN_BYTES = 2**20


class DecodedBase64:
    """A long string of base64, as what it stands for."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def text(self) -> str:
        """The string, to the letter."""
        return pybase64.b64encode(self.content).decode()


def parse(body: bytes) -> Any:
    """JSON whose ``payload``, or the values right in it or in its items, may be :class:`DecodedBase64`.

    What is no JSON, or has long strings elsewhere, is parsed as a whole: :class:`orjson.JSONDecodeError`.
    """
    if len(body) < MIN_BYTES:
        return orjson.loads(body)
    word = uuid.uuid4().hex
    cut: dict[str, DecodedBase64] = {}
    pieces, done = [], 0
    for start, end, content in _strings(body):
        name = f"{word}-{len(cut)}"
        cut[name] = DecodedBase64(content)
        pieces += [body[done:start], name.encode()]
        done = end
    if not cut:
        return orjson.loads(body)
    try:
        parsed = orjson.loads(b"".join([*pieces, body[done:]]))
    except orjson.JSONDecodeError:
        # For the place that the error names.
        return orjson.loads(body)
    whole = _fill(parsed, cut)
    # Whatever was not found is a key, or deep within something.
    return orjson.loads(body) if cut else whole


def _strings(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where long strings of base64 start and end, and what they stand for.

    What stands between two quotes and is base64 is a string, unless the first quote is escaped: JSON has at
    least a comma or a colon between two strings.
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
    """None for what is no base64, and for what another text stands for as well."""
    try:
        content = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    last = len(content) % 3 or 3
    return content if pybase64.b64encode(content[-last:]) == text[-4:] else None


def _fill(parsed: Any, cut: dict[str, DecodedBase64]) -> Any:
    """``parsed`` with what was cut out, which is taken from ``cut``, where the payload has it."""
    if not isinstance(parsed, dict):
        return parsed
    payload = parsed.get("payload")
    if isinstance(payload, list):
        parsed["payload"] = [_record(item, cut) for item in payload]
    elif "payload" in parsed:
        parsed["payload"] = _record(payload, cut)
    return parsed


def _record(record: Any, cut: dict[str, DecodedBase64]) -> Any:
    if isinstance(record, dict):
        return {name: _value(value, cut) for name, value in record.items()}
    return _value(record, cut)


def _value(value: Any, cut: dict[str, DecodedBase64]) -> Any:
    return cut.pop(value, value) if isinstance(value, str) else value
