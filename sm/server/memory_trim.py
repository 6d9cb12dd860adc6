"""Give memory of large bodies back to the system while a worker is idle.

While requests come that is right, the next one needs it: see ALLOCATOR in
:mod:`sm.server.supervisor.commands`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

#: Seconds between two looks, and the share of them in computing that is no work.
EVERY, IDLE = 5.0, 0.02
#: Seconds of computing after which there is something to give back: a single large body takes more.
WORKED = 0.01


def trim() -> None:
    """Give freed memory back to the kernel, where the C library can (glibc's)."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release:
        release(0)


def watch(
    give_back: Callable[[], object] = trim,
    every: float = EVERY,
    spent: Callable[[], float] = time.process_time,
) -> Callable[[], None]:
    """Call ``give_back`` whenever this process is at rest after it has worked; what is returned ends it.

    ``spent`` tells the processor's seconds that this process has used.
    """
    over = threading.Event()

    def look() -> None:
        before = spent()
        given = before - WORKED
        while not over.wait(every):
            now = spent()
            gives = now - before < every * IDLE and now - given >= WORKED
            if gives:
                give_back()
            before = spent()
            given = before if gives else given

    threading.Thread(target=look, name="rest", daemon=True).start()
    return over.set
