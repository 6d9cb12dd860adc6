"""Refuse JSON that would crash Triton 2.51: huge shapes and deep nesting.

Triton allocates a tensor by the shape that a caller names, before it reads the numbers, and parses by
recursion. In both cases one small request ends its process.
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
#: In Triton's spelling.
COMPRESSIONS = ("gzip", "deflate")
#: Levels; orjson has the same limit. Triton crashes between 10,000 and 100,000.
MAX_DEPTH = 1000
#: ``"shape": [...]``. JSON may write each letter as an escape.
SHAPE = re.compile(
    rb'"(?:s|\\u0073)(?:h|\\u0068)(?:a|\\u0061)(?:p|\\u0070)(?:e|\\u0065)"\s*:\s*\[([^\]]*)\]',
)


def check(body: bytes, headers: Mapping[str, str], largest: int) -> None:
    """Check a body for Triton.

    Raises:
        BadInput: the body would crash Triton.
        TooLarge: it has more than ``largest`` bytes after decompression.
        UnsupportedType: Triton does not know its compression.

    Header names are in lower case. Other errors are left to Triton, which reports them.
    """
    content = decompress(body, headers.get("content-encoding", ""), largest)
    size = headers.get(HEADER_SIZE, "")
    text = content[: int(size)] if size.isdecimal() else content
    check_depth(text)
    for match in SHAPE.finditer(text):
        elements = product(match[1])
        # An element takes at least a byte, in JSON and in binary.
        if elements > len(content):
            raise BadInput(f"a tensor of {elements} elements cannot be in a body of {len(content)} bytes")


def decompress(body: bytes, encoding: str, largest: int) -> bytes:
    """Decompress the body as Triton does. It knows two compressions and answers 501 to others."""
    coding = encoding.strip()
    if not body or coding in ("", "identity"):
        return body
    if coding not in COMPRESSIONS:
        raise UnsupportedType(
            f"a body with the Content-Encoding {coding[:40]!r} is not taken, only {' or '.join(COMPRESSIONS)}"
        )
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = unpacker.decompress(body, largest + 1)
    except zlib.error as error:
        raise BadInput(f"the body is not {coding}: {error}") from None
    if len(content) > largest:
        raise TooLarge("the body is larger than this box accepts, once it is unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise BadInput(f"the body is not one whole {coding} stream")
    return content


def check_depth(text: bytes) -> None:
    """Raise :class:`BadInput` for JSON that is nested too deeply. For nearly all bodies counting brackets is
    enough.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        # NaN is valid for Triton. For other invalid JSON, Python's parser reports a level too many.
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise BadInput(f"the body is not JSON, or more than {MAX_DEPTH} levels deep") from None


def product(dimensions: bytes) -> int:
    """Return the number of elements of a shape; 0 if it is no shape."""
    try:
        return math.prod(int(part) for part in dimensions.split(b","))
    except ValueError:
        return 0
