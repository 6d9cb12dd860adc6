"""Refuse JSON that would crash Triton 2.51: huge shapes and deep nesting.

Triton allocates a tensor by the shape that a caller states, before it reads the numbers. It parses nested
JSON by recursion. In both cases one small request can end its process.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping

import orjson

from sm.errors import BadInput, TooLarge, UnsupportedType

#: Triton's header: bytes of JSON before the tensors; 0 without it.
HEADER_SIZE = "inference-header-content-length"
#: The Content-Encodings that Triton decompresses.
COMPRESSIONS = ("gzip", "deflate")
#: Levels of JSON. orjson has about the same limit; Triton crashes somewhere between 10,000 and 100,000.
MAX_DEPTH = 1000
#: ``"shape": [...]``. JSON allows to write each letter as an escape.
SHAPE = re.compile(
    rb'"(?:s|\\u0073)(?:h|\\u0068)(?:a|\\u0061)(?:p|\\u0070)(?:e|\\u0065)"\s*:\s*\[([^\]]*)\]',
)


def check(body: bytes, headers: Mapping[str, str], max_bytes: int) -> None:
    """Check a body for Triton. Other errors are left to Triton, which reports them.

    Args:
        body: As the caller sent it, perhaps compressed.
        headers: Names in lower case.
        max_bytes: Of the body after decompression.

    Raises:
        BadInput: The body would crash Triton.
        TooLarge: It has more than ``max_bytes``.
        UnsupportedType: Triton cannot decompress it.
    """
    content = decompress(body, headers.get("content-encoding", ""), max_bytes)
    size = headers.get(HEADER_SIZE, "")
    text = content[: int(size)] if size.isdecimal() else content
    check_depth(text)
    for match in SHAPE.finditer(text):
        elements = element_count(match[1])
        # An element takes at least a byte, in JSON and in binary.
        if elements > len(content):
            raise BadInput(f"a tensor of {elements} elements cannot be in a body of {len(content)} bytes")


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a body as Triton does."""
    coding = encoding.strip()
    if not body or coding in ("", "identity"):
        return body
    if coding not in COMPRESSIONS:
        raise UnsupportedType(
            f"a body with the Content-Encoding {coding[:40]!r} is not taken, only {' or '.join(COMPRESSIONS)}"
        )
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BadInput(f"the body is not {coding}: {error}") from None
    if len(content) > max_bytes:
        raise TooLarge("the body is larger than this box accepts, once it is unpacked")
    if not decompressor.eof or decompressor.unused_data:
        raise BadInput(f"the body is not one whole {coding} stream")
    return content


def check_depth(text: bytes) -> None:
    """Raise :class:`BadInput` if JSON is nested too deeply. Most bodies have too few brackets for that."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        # orjson also refuses NaN, which Triton accepts, so let Python's parser decide.
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise BadInput(f"the body is not JSON, or more than {MAX_DEPTH} levels deep") from None


def element_count(dimensions: bytes) -> int:
    """Return the number of elements of a shape; 0 if it is not a shape."""
    try:
        return math.prod(int(part) for part in dimensions.split(b","))
    except ValueError:
        return 0
