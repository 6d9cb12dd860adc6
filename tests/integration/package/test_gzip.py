"""Blocks compressed in parallel make one ordinary gzip stream."""

from __future__ import annotations

import gzip
import io
import os

import pytest

from trireme_tools.package.archive_writer import BLOCK_BYTES, Gzip


def compress(data: bytes, threads: int) -> bytes:
    target = io.BytesIO()
    writer = Gzip(target, threads, 3)
    for start in range(0, len(data), 300_000):
        writer.write(data[start : start + 300_000])
    writer.close()
    return target.getvalue()


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 17])
def test_gzip_reads_back_what_any_number_of_threads_compressed(size: int) -> None:
    data = os.urandom(size // 2) + bytes(size - size // 2)
    packed = compress(data, threads=3)
    assert gzip.decompress(packed) == data
    assert compress(data, threads=1) == packed
