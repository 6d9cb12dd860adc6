"""Whether a call leaves something behind: the process's memory over many calls."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

#: Calls before the first look: what is loaded or cached once is there by then.
WARM_UP_CALLS = 200
#: Bytes that all calls together may leave, and objects each: the allocators' own slack is below both.
BYTES, OBJECTS = 8 * 2**20, 0.5
#: Calls that are traced to name the line that leaks. It makes them slow.
TRACED_CALLS = 100


def find_leak(call: Callable[[int], object], calls: int, folder: Path) -> str | None:
    """Call it ``calls`` times; a sentence with the line of ``folder`` that leaks, None if none does."""
    for turn in range(WARM_UP_CALLS):
        call(turn)
    before = _held()
    for turn in range(WARM_UP_CALLS, calls):
        call(turn)
    after = _held()
    objects, size = after[0] - before[0], after[1] - before[1]
    if objects < OBJECTS * (calls - WARM_UP_CALLS) and size < BYTES:
        return None
    grown = f"{size / 2**20:.1f} MiB and {objects:,} objects more after {calls - WARM_UP_CALLS:,} calls"
    return f"leak: {grown}{_culprit(call, folder)}"


def _held() -> tuple[int, int]:
    """Blocks of Python's own, and bytes resident, once what can be freed is."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE")


def _culprit(call: Callable[[int], object], folder: Path) -> str:
    tracemalloc.start(12)
    try:
        first = tracemalloc.take_snapshot()
        for turn in range(TRACED_CALLS):
            call(turn)
        gc.collect()
        grown = tracemalloc.take_snapshot().compare_to(first, "traceback")
    finally:
        tracemalloc.stop()
    for row in sorted(grown, key=lambda row: -row.size_diff):
        frames = [frame for frame in row.traceback if Path(frame.filename).is_relative_to(folder)]
        if frames and row.count_diff >= TRACED_CALLS // 2:
            return f"; most of it from {Path(frames[-1].filename).name}, line {frames[-1].lineno}"
    return ""
