"""The memory that Python and NumPy take in a block."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 2**20


class Peak:
    """The most memory that was taken at once."""

    bytes = 0


@contextmanager
def measured() -> Iterator[Peak]:
    """Measure the block; the peak is known at its end, also if it raises."""
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
