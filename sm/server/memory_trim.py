"""Return the memory of large bodies to the kernel while a worker is idle.

While requests arrive the memory is kept for the next one: see ALLOCATOR in
:mod:`sm.server.supervisor.commands`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from sm.polling import Poll

IDLE_TRIM_INTERVAL_S = 5.0
#: A process that uses less than this share of one processor is idle.
IDLE_CPU_SHARE = 0.02
#: Processor seconds since the last trim, below which there is nothing to return: one large body takes more.
MIN_WORK_CPU_S = 0.01


def trim() -> None:
    """Return freed memory to the kernel, if the C library (glibc) can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim:
        malloc_trim(0)


def watch(
    release: Callable[[], object] = trim,
    interval_s: float = IDLE_TRIM_INTERVAL_S,
    cpu_time: Callable[[], float] = time.process_time,
) -> Callable[[], None]:
    """Call ``release`` whenever this process is idle after work. The returned function stops that.

    ``cpu_time`` returns the processor time of this process in seconds.
    """
    last_cpu_time = cpu_time()
    trimmed_at = last_cpu_time - MIN_WORK_CPU_S

    def trim_if_idle() -> None:
        nonlocal last_cpu_time, trimmed_at
        now = cpu_time()
        is_due = now - last_cpu_time < interval_s * IDLE_CPU_SHARE and now - trimmed_at >= MIN_WORK_CPU_S
        if is_due:
            release()
        last_cpu_time = cpu_time()
        trimmed_at = last_cpu_time if is_due else trimmed_at

    poll = Poll("memory-trim", interval_s, trim_if_idle)
    poll.start()
    return poll.stop
