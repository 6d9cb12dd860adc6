"""Check by a file's protobuf structure whether it can be an ONNX graph. Reads no weights."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

#: Number of the field of ONNX's ``ModelProto`` that holds the graph.
GRAPH = 7
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Longest varint in bytes.
MAX_VARINT_BYTES = 10
POINTER = b"version https://git-lfs"
#: The signature of ONNX Runtime's own format, and its offset.
ORT_FORMAT, ORT_OFFSET = b"ORTM", 4


class Malformed(ValueError):
    """The bytes are no protobuf."""


def find_fault(path: Path) -> str | None:
    """Explain why no runtime can read an ONNX file, as the end of a sentence; None if no fault is known."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                return "is empty"
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _find_fault(data)
    except (OSError, ValueError):
        return None


def _find_fault(data: mmap.mmap) -> str | None:
    if data[: len(POINTER)] == POINTER:
        return "is a pointer of Git LFS, not the file itself: run git lfs pull"
    if data[ORT_OFFSET : ORT_OFFSET + len(ORT_FORMAT)] == ORT_FORMAT:
        return None
    try:
        graphs = [span for number, span in _fields(data, 0, len(data)) if number == GRAPH]
        for begin, end in graphs:
            for _ in _fields(data, begin, end):
                pass
    except Malformed as error:
        return f"is no ONNX graph, or a damaged one: {error}"
    return None if graphs else "is no ONNX graph: it has none of its fields"


def _fields(data: mmap.mmap, place: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield number and extent of each field of a message."""
    while place < end:
        start = place
        tag, place = _varint(data, place, end)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _, after = _varint(data, place, end)
        elif kind == BYTES:
            size, place = _varint(data, place, end)
            after = place + size
        elif kind in (FIXED64, FIXED32):
            after = place + (8 if kind == FIXED64 else 4)
        else:
            raise Malformed(f"byte {start} begins no field")
        if not number:
            raise Malformed(f"byte {start} begins no field")
        if after > end:
            raise Malformed(f"it ends {after - end} bytes too early")
        yield number, (place, after)
        place = after


def _varint(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """Read a number; return it with the position after it."""
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if place + index >= end:
            raise Malformed("it ends within a number")
        byte = data[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise Malformed(f"byte {place} begins no number")
