"""Return the memory of large bodies to the system while a worker is idle.

While requests arrive the memory is kept for the next one: see ALLOCATOR in
:mod:`sm.server.supervisor.commands`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from sm.polling import Poll

IDLE_TRIM_INTERVAL_S = 5.0
#: A process that computes for less than this share of the interval is idle.
IDLE_CPU_SHARE = 0.02
#: After so much computing there is something to give back: a single large body takes more.
MIN_WORK_CPU_S = 0.01


def trim() -> None:
    """Give back freed memory to the kernel, if the C library (glibc) can."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release:
        release(0)


def watch(
    give_back: Callable[[], object] = trim,
    interval_s: float = IDLE_TRIM_INTERVAL_S,
    cpu_time: Callable[[], float] = time.process_time,
) -> Callable[[], None]:
    """Call ``give_back`` whenever this process is idle after work; calling the returned function stops it.

    ``spent`` returns the processor time of this process in seconds.
    """
    before = cpu_time()
    trimmed_at = before - MIN_WORK_CPU_S

    def look() -> None:
        nonlocal before, trimmed_at
        now = cpu_time()
        gives = now - before < interval_s * IDLE_CPU_SHARE and now - trimmed_at >= MIN_WORK_CPU_S
        if gives:
            give_back()
        before = cpu_time()
        trimmed_at = before if gives else trimmed_at

    poll = Poll("memory-trim", interval_s, look)
    poll.start()
    return poll.stop
