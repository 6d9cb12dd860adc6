"""Refuse JSON that would crash Triton 2.51: huge shapes and deep nesting.

Triton makes room for a tensor by the shape that a caller names, before it looks for the numbers, and parses
by recursion. Either way one small request is the end of its process.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping

import orjson

from sm.errors import BadInput, TooLarge, UnsupportedType

#: Triton's own header: bytes of JSON before the tensors; 0 where there is none.
HEADER_SIZE = "inference-header-content-length"
#: As Triton spells them.
COMPRESSIONS = ("gzip", "deflate")
#: Levels, as orjson has it; Triton falls between 10,000 and 100,000.
MAX_DEPTH = 1000
#: ``"shape": [...]``; JSON may write each letter as an escape.
SHAPE = re.compile(
    rb'"(?:s|\\u0073)(?:h|\\u0068)(?:a|\\u0061)(?:p|\\u0070)(?:e|\\u0065)"\s*:\s*\[([^\]]*)\]',
)


def check(body: bytes, headers: Mapping[str, str], largest: int) -> None:
    """:class:`BadInput` for a body that Triton would not outlive, :class:`TooLarge` over ``largest`` bytes,
    :class:`UnsupportedType` for a compression that it does not know.

    Header names in lower case. What is only wrong is left to Triton, which says so.
    """
    whole = decompress(body, headers.get("content-encoding", ""), largest)
    size = headers.get(HEADER_SIZE, "")
    text = whole[: int(size)] if size.isdecimal() else whole
    check_depth(text)
    for found in SHAPE.finditer(text):
        elements = product(found[1])
        # In JSON an element is a byte at least, and so it is in binary.
        if elements > len(whole):
            raise BadInput(f"a tensor of {elements} elements cannot be in a body of {len(whole)} bytes")


def decompress(body: bytes, encoding: str, largest: int) -> bytes:
    """The body as Triton will see it: it knows two compressions, and answers 501 to every other."""
    coding = encoding.strip()
    if not body or coding in ("", "identity"):
        return body
    if coding not in COMPRESSIONS:
        raise UnsupportedType(
            f"a body with the Content-Encoding {coding[:40]!r} is not taken, only {' or '.join(COMPRESSIONS)}"
        )
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        whole = unpacker.decompress(body, largest + 1)
    except zlib.error as error:
        raise BadInput(f"the body is not {coding}: {error}") from None
    if len(whole) > largest:
        raise TooLarge("the body is larger than this box accepts, once it is unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise BadInput(f"the body is not one whole {coding} stream")
    return whole


def check_depth(text: bytes) -> None:
    """:class:`BadInput` for JSON that is too deep. To count is enough for nearly all."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        # NaN, which is Triton's to take; and Python knows a level too many from what is no JSON.
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise BadInput(f"the body is not JSON, or more than {MAX_DEPTH} levels deep") from None


def product(dimensions: bytes) -> int:
    """How many elements a shape has; 0 for what is no shape."""
    try:
        return math.prod(int(part) for part in dimensions.split(b","))
    except ValueError:
        return 0
