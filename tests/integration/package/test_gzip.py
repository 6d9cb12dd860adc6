"""Blocks that are compressed side by side are one ordinary gzip stream."""

from __future__ import annotations

import gzip
import io
import os
import subprocess

import pytest

from sm.tools.package.gzip import BLOCK_BYTES, Gzip

SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 17)


def compressed(data: bytes, threads: int) -> bytes:
    target = io.BytesIO()
    packer = Gzip(target, threads, 3)
    for start in range(0, len(data), 300_000):
        packer.write(data[start : start + 300_000])
    packer.close()
    return target.getvalue()


@pytest.mark.parametrize("size", SIZES)
def test_everything_comes_back(size: int) -> None:
    data = os.urandom(size // 2) + bytes(size - size // 2)
    made = compressed(data, threads=3)
    assert gzip.decompress(made) == data
    subprocess.run(["gzip", "--test"], input=made, check=True)


def test_the_number_of_threads_changes_nothing() -> None:
    data = os.urandom(3 * BLOCK_BYTES)
    assert compressed(data, threads=1) == compressed(data, threads=4)
