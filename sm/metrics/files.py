"""Disk space for the files of prometheus_client's multi-process mode, so that a full disk ends no worker.

The library maps files with holes. A count that falls into a hole which the disk has no room for kills the
process (SIGBUS). Here a file gets its space before it is mapped, and what finds none is counted in memory.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

log = logging.getLogger(__name__)

#: Disk space for a worker's series, by kind, if all models have series that may have their own.
RESERVED_BYTES = {"counter": 2**18, "histogram": 2**22, "gauge_livesum": 2**16}
#: A file begins with the count of its used bytes, and as many bytes of padding.
USED = struct.Struct("i")
#: Bytes by which a file grows.
ROOM_BYTES = 2**16
#: Bytes of an entry beside its key, at most: length, padding, value and timestamp.
ENTRY_BYTES = 28
#: Bytes of the value and the timestamp.
VALUE_BYTES = 16


class ReservedFile(MmapedDict):
    """The file of one kind of series of this process, with its disk space; without space, only in memory."""

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        self._is_full, in_memory = False, None
        try:
            allocate(Path(filename), ROOM_BYTES)
        except OSError as error:
            log.warning(
                "the series of this worker are not counted in %s: there is no disk space for them (%s)",
                filename,
                error,
            )
            in_memory = os.memfd_create("series")
            filename = f"/proc/self/fd/{in_memory}"
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]
        if in_memory is not None:
            os.close(in_memory)

    def _init_value(self, key: str) -> None:
        """Append an entry. If the file cannot grow, its last bytes take the value; no reader sees them."""
        end = self._used + len(key.encode()) + ENTRY_BYTES + VALUE_BYTES
        if end > self._capacity and (self._is_full or not self._grow(end)):
            self._is_full, self._positions[key] = True, self._capacity - VALUE_BYTES
            self._m[-VALUE_BYTES:] = bytes(VALUE_BYTES)
            return
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self, end: int) -> bool:
        try:
            os.posix_fallocate(self._f.fileno(), 0, _rounded(end))
        except OSError:
            return False
        self._capacity = os.fstat(self._f.fileno()).st_size
        self._m = mmap.mmap(self._f.fileno(), self._capacity)
        return True


def reserve(folder: Path, pid: int) -> None:
    """Reserve the disk space of a worker's series before they exist."""
    with contextlib.suppress(OSError):  # each file says so when it is made
        for kind, size in RESERVED_BYTES.items():
            allocate(_path(folder, kind, pid), size)


def make_room(kind: str, size: int) -> bool:
    """Reserve disk space for more series of this process. Returns False if there is none.

    Args:
        kind: The kind of series, as it begins the file's name.
        size: Bytes that the series take.
    """
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return True
    path, used = _path(Path(folder), kind, os.getpid()), 0
    try:
        if path.exists():
            with path.open("rb") as file:
                (used,) = USED.unpack(file.read(USED.size))
        allocate(path, _rounded(max(used, 2 * USED.size) + size + VALUE_BYTES))
    except OSError:
        return False
    return True


def allocate(path: Path, size: int) -> None:
    """Give a file of series its disk space. Raises :class:`OSError` if there is none."""
    # Readers fail on an empty file, so it gets its name when it has its size.
    reserved = path if path.exists() else path.with_suffix(".new")
    try:
        with reserved.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        reserved.replace(path)
    finally:
        path.with_suffix(".new").unlink(missing_ok=True)


def _path(folder: Path, kind: str, pid: int) -> Path:
    return folder / f"{kind}_{pid}.db"


def _rounded(size: int) -> int:
    return -(-size // ROOM_BYTES) * ROOM_BYTES
