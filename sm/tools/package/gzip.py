"""gzip with all cores: one ordinary member, whose blocks are compressed side by side."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

#: What a thread compresses at once, in bytes. Each block starts without a dictionary: at this size that costs
#: less than 1 % of what is saved.
BLOCK = 2**20
#: No name and no time, so that the same input is the same archive.
HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"


class Gzip:
    """Write to it, then :meth:`close` it. zlib lets go of the interpreter's lock, so threads do."""

    def __init__(self, target: BinaryIO, threads: int, level: int) -> None:
        self._target, self._level = target, level
        self._pool = ThreadPoolExecutor(threads, "gzip")
        self._most = 2 * threads
        self._pending: deque[Future[bytes]] = deque()
        self._rest = bytearray()
        self._checksum = 0
        #: Bytes taken so far.
        self.size = 0
        #: Of what was written to ``target``.
        self.sha256 = hashlib.sha256()
        self._put(HEADER)

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self._rest += data
        while len(self._rest) > BLOCK:
            self._compress(bytes(self._rest[:BLOCK]), zlib.Z_SYNC_FLUSH)
            del self._rest[:BLOCK]
        return len(data)

    def close(self) -> None:
        self._compress(bytes(self._rest), zlib.Z_FINISH)
        while self._pending:
            self._put(self._pending.popleft().result())
        self._put(struct.pack("<II", self._checksum, self.size % 2**32))
        self.stop()

    def stop(self) -> None:
        """End the threads, whatever is left undone."""
        self._pool.shutdown(cancel_futures=True)

    def _compress(self, block: bytes, flush: int) -> None:
        self._checksum = zlib.crc32(block, self._checksum)
        self._pending.append(self._pool.submit(deflate, block, flush, self._level))
        while len(self._pending) > self._most:
            self._put(self._pending.popleft().result())

    def _put(self, data: bytes) -> None:
        self.sha256.update(data)
        self._target.write(data)


def deflate(block: bytes, flush: int, level: int) -> bytes:
    """A piece of a raw deflate stream: pieces put together are one stream, as each ends on a whole byte."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(block) + compressor.flush(flush)
