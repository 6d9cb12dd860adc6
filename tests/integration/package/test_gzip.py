"""Blocks compressed in parallel make one ordinary gzip stream."""

from __future__ import annotations

import gzip
import io
import os
import subprocess

import pytest

from trireme_tools.package.archive_writer import BLOCK_BYTES, Gzip

SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 17)


def compress(data: bytes, threads: int) -> bytes:
    target = io.BytesIO()
    writer = Gzip(target, threads, 3)
    for start in range(0, len(data), 300_000):
        writer.write(data[start : start + 300_000])
    writer.close()
    return target.getvalue()


@pytest.mark.parametrize("size", SIZES)
def test_gzip_reads_back_what_was_compressed(size: int) -> None:
    data = os.urandom(size // 2) + bytes(size - size // 2)
    packed = compress(data, threads=3)
    assert gzip.decompress(packed) == data
    subprocess.run(["gzip", "--test"], input=packed, check=True)


def test_the_number_of_threads_does_not_change_the_output() -> None:
    data = os.urandom(3 * BLOCK_BYTES)
    assert compress(data, threads=1) == compress(data, threads=4)
