"""What a model's files are, by their first bytes: an ONNX graph, an environment for a version of Python."""

from __future__ import annotations

import io
import mmap
import re
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The number of the field ``graph`` in ONNX's ``ModelProto``.
GRAPH_FIELD = 7
#: Protobuf's wire types.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Longest varint in bytes.
MAX_VARINT_BYTES = 10
#: A Git LFS pointer begins like this.
LFS_POINTER = b"version https://git-lfs"
#: The signature of ONNX Runtime's own format, and its offset.
ORT_FORMAT, ORT_OFFSET = b"ORTM", 4


class Malformed(ValueError):
    """The bytes are not protobuf."""


def find_fault(path: Path) -> str | None:
    """Explain why no runtime can read an ONNX file. The result continues a sentence; None without a fault."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                return "is empty"
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _find_fault(data)
    except (OSError, ValueError):
        return None


def _find_fault(data: mmap.mmap) -> str | None:
    if data[: len(LFS_POINTER)] == LFS_POINTER:
        return "is a pointer of Git LFS, not the file itself: run git lfs pull"
    if data[ORT_OFFSET : ORT_OFFSET + len(ORT_FORMAT)] == ORT_FORMAT:
        return None
    try:
        graphs = [span for number, span in _fields(data, 0, len(data)) if number == GRAPH_FIELD]
        for begin, end in graphs:
            for _ in _fields(data, begin, end):
                pass
    except Malformed as error:
        return f"is not an ONNX graph, or a damaged one: {error}"
    return None if graphs else "is not an ONNX graph: it has none of its fields"


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each field of a message, and where its content begins and ends."""
    while position < end:
        start = position
        tag, position = _varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _, after = _varint(data, position, end)
        elif kind == BYTES:
            size, position = _varint(data, position, end)
            after = position + size
        elif kind in (FIXED64, FIXED32):
            after = position + (8 if kind == FIXED64 else 4)
        else:
            raise Malformed(f"byte {start} begins no field")
        if not number:
            raise Malformed(f"byte {start} begins no field")
        if after > end:
            raise Malformed(f"it ends {after - end} bytes too early")
        yield number, (position, after)
        position = after


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """Read a number; return it with the position after it."""
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if position + index >= end:
            raise Malformed("it ends within a number")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise Malformed(f"byte {position} begins no number")


#: For reading an archive's first files. After that the version is unknown.
MAX_READ_S = 3.0
#: The path of a file of Python in an environment. It leaves out ``python3.1``, a link that conda creates for
#: Python 3.10 and later.
LIBRARY = re.compile(r"^(?:\./)?lib/(?:lib)?python(3\.(?!1(?:/|$|\.so))\d+)(?:/|\.so|$)")


class _TimeLimitedFile(io.RawIOBase):
    """A file whose reads raise TimeoutError once the time is over."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._file, self._deadline = path.open("rb", buffering=0), time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        if time.monotonic() > self._deadline:
            raise TimeoutError
        return self._file.readinto(buffer)  # type: ignore[arg-type]

    def close(self) -> None:
        self._file.close()
        super().close()


def find_python(environment: Path, seconds: float = MAX_READ_S) -> str:
    """Return the minor version, such as 3.12; empty if it cannot be told in time."""
    try:
        if environment.is_dir():
            return _first_version(f"lib/{path.name}" for path in sorted((environment / "lib").iterdir()))
        with (
            io.BufferedReader(_TimeLimitedFile(environment, seconds)) as file,
            tarfile.open(fileobj=file, mode="r|*") as archive,
        ):
            return _first_version(member.name for member in archive)
    except (OSError, EOFError, tarfile.TarError):
        return ""


def _first_version(names: Iterable[str]) -> str:
    return next((match[1] for name in names if (match := LIBRARY.match(name))), "")
