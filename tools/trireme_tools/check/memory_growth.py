"""Find out whether calls leak memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

#: Calls before the first measurement, so that caches are filled.
WARM_UP_CALLS = 200
#: Bytes that all calls together may leave, and objects per call: the allocators' noise is below both.
MAX_GROWTH_BYTES, MAX_OBJECTS_PER_CALL = 8 * 2**20, 0.5
#: Calls that are traced, which is slow, to name the line that leaks.
TRACED_CALLS = 100


def find_leak(call: Callable[[int], object], calls: int, folder: Path) -> str | None:
    """Call it ``calls`` times. Returns a sentence with the line of ``folder`` that leaks, or None."""
    for turn in range(WARM_UP_CALLS):
        call(turn)
    before = _measure()
    for turn in range(WARM_UP_CALLS, calls):
        call(turn)
    after = _measure()
    objects, size = after[0] - before[0], after[1] - before[1]
    if objects < MAX_OBJECTS_PER_CALL * (calls - WARM_UP_CALLS) and size < MAX_GROWTH_BYTES:
        return None
    grown = f"{size / 2**20:.1f} MiB and {objects:,} objects more after {calls - WARM_UP_CALLS:,} calls"
    return f"leak: {grown}{_culprit(call, folder)}"


def _measure() -> tuple[int, int]:
    """Return Python's allocated blocks and the resident bytes, after freeing what can be freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE")


def _culprit(call: Callable[[int], object], folder: Path) -> str:
    tracemalloc.start(12)
    try:
        snapshot = tracemalloc.take_snapshot()
        for turn in range(TRACED_CALLS):
            call(turn)
        gc.collect()
        grown = tracemalloc.take_snapshot().compare_to(snapshot, "traceback")
    finally:
        tracemalloc.stop()
    for row in sorted(grown, key=lambda row: -row.size_diff):
        frames = [frame for frame in row.traceback if Path(frame.filename).is_relative_to(folder)]
        if frames and row.count_diff >= TRACED_CALLS // 2:
            return f"; most of it from {Path(frames[-1].filename).name}, line {frames[-1].lineno}"
    return ""
