"""Write a ``.tar.gz`` whose bytes depend on its entries only."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tarfile
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO, BinaryIO, cast

from sm.errors import CommandError
from trireme_tools.package.contents import ArchiveEntry
from trireme_tools.progress import Progress

#: Bytes of a block. Each starts without a dictionary, which at this size costs less than 1 % of the saving.
BLOCK_BYTES = 2**20
#: Neither name nor time, so that the same input gives the same archive.
HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"


class Gzip:
    """A writer; call :meth:`close` at the end. Threads run in parallel, as zlib releases the interpreter's
    lock.
    """

    def __init__(self, target: BinaryIO, threads: int, level: int) -> None:
        self._target, self._level = target, level
        self._pool = ThreadPoolExecutor(threads, "gzip")
        self._max_pending = 2 * threads
        self._pending: deque[Future[bytes]] = deque()
        self._buffered = bytearray()
        self._checksum = 0
        #: Bytes written so far.
        self.size = 0
        #: The digest of what was written to ``target``.
        self.sha256 = hashlib.sha256()
        self._put(HEADER)

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self._buffered += data
        while len(self._buffered) > BLOCK_BYTES:
            self._compress(bytes(self._buffered[:BLOCK_BYTES]), zlib.Z_SYNC_FLUSH)
            del self._buffered[:BLOCK_BYTES]
        return len(data)

    def close(self) -> None:
        self._compress(bytes(self._buffered), zlib.Z_FINISH)
        while self._pending:
            self._put(self._pending.popleft().result())
        self._put(struct.pack("<II", self._checksum, self.size % 2**32))
        self.stop()

    def stop(self) -> None:
        """Stop the threads, even if work is left."""
        self._pool.shutdown(cancel_futures=True)

    def _compress(self, block: bytes, flush: int) -> None:
        self._checksum = zlib.crc32(block, self._checksum)
        self._pending.append(self._pool.submit(deflate, block, flush, self._level))
        while len(self._pending) > self._max_pending:
            self._put(self._pending.popleft().result())

    def _put(self, data: bytes) -> None:
        self.sha256.update(data)
        self._target.write(data)


def deflate(block: bytes, flush: int, level: int) -> bytes:
    """Return a piece of a raw deflate stream. Each ends on a whole byte, so pieces can be joined."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(block) + compressor.flush(flush)


#: Weights hardly compress at any level; the default one takes twice as long for 0.3 % less.
GZIP_LEVEL = 3
#: 1980: GNU tar warns about files from 1970.
TIME = 315_532_800


def write(place: Path, entries: Sequence[ArchiveEntry], progress: Progress) -> str:
    """Write the archive and return its sha256. An earlier file stays until the new one is complete."""
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = _write(staged, place.name, entries, progress)
            staged.replace(place)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{place} cannot be written: {error}.") from error
    return digest


def _write(staged: Path, name: str, entries: Sequence[ArchiveEntry], progress: Progress) -> str:
    size = sum(entry.size for entry in entries)
    with staged.open("wb") as target:
        packer = Gzip(target, os.cpu_count() or 1, GZIP_LEVEL)
        try:
            with progress.step(f"packing {name}", size, lambda: packer.size):
                _pack(packer, entries)
        finally:
            packer.stop()
    return packer.sha256.hexdigest()


def _pack(packer: Gzip, entries: Sequence[ArchiveEntry]) -> None:
    # tarfile raises OSError if a file shrinks meanwhile.
    archive = tarfile.TarFile(
        fileobj=cast(IO[bytes], packer), mode="w", format=tarfile.GNU_FORMAT, copybufsize=2**20
    )
    with closing(archive):
        for entry in entries:
            _add(archive, entry)
    packer.close()


def _add(archive: tarfile.TarFile, entry: ArchiveEntry) -> None:
    """Add an entry; owner, time and mode do not depend on the machine."""
    header = tarfile.TarInfo(entry.name)
    header.mtime = TIME
    header.mode = 0o755 if entry.executable else 0o644
    if entry.is_folder:
        header.type = tarfile.DIRTYPE
        archive.addfile(header)
        return
    with io.BytesIO(entry.data) if entry.data is not None else entry.source.open("rb") as stream:
        header.size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        archive.addfile(header, stream)
