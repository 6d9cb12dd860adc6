"""Limit how much memory a worker takes for decoding; each request accounts for its share first."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sm import deadline
from sm.errors import Overloaded, TooLarge
from sm.metrics import DECODED_BYTES
from sm.settings import Settings

#: Bytes of memory for each comma or bracket of JSON: 26 to 60 for numbers, 46 for lists, 128 for objects.
BYTES_PER_MARK = 64
#: Of each mark so many are not worth accounting for.
MAX_UNCOUNTED_MARKS = 1000
#: Seconds that a request waits for room before its caller is told to come again. Other decodes, of the same
#: request perhaps, end within that time.
MAX_WAIT_S = 5.0
#: Seconds between two looks for room. What is given back by finalizers wakes nobody up.
LOOK_INTERVAL_S = 0.05
#: The share of the memory that all workers may take, where no setting says it, and the least for each of them
#: in bytes: 36 megapixels of PNG.
MEMORY_SHARE, MIN_LIMIT = 0.25, 2**28
#: What the kernel allows a container, of the second and of the first version of control groups.
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class DecodeBudget:
    """At most ``limit`` bytes for what is being decoded and for what of it is still in use.

    For JSON: :meth:`held`. Around the decode of a picture: :meth:`acquire` what its worst moment takes; then
    :meth:`keep` what stays, or :meth:`release` all of it if there is no result.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._lock = threading.Lock()
        #: Filled by finalizers, which may run amid this class's own code: an append and no lock.
        self._returned: deque[int] = deque()

    def acquire(self, size: int) -> None:
        """Account for ``size`` bytes, once there is room for them.

        :class:`TooLarge` if that is more than the whole budget, :class:`Overloaded` if there is no room for
        :data:`MAX_WAIT_S`, and what the request's own deadline raises.
        """
        if size > self.limit:
            raise TooLarge(
                f"decoding the body takes {size / 2**20:,.0f} MiB of memory; "
                f"at most {self.limit / 2**20:,.0f} MiB are accepted"
            )
        until = time.monotonic() + MAX_WAIT_S
        while not self._take(size):
            running = deadline.current()
            if running is not None:
                running.check()
            if time.monotonic() > until:
                raise Overloaded("the memory for pictures and large JSON is in use")
            time.sleep(LOOK_INTERVAL_S)

    def release(self, size: int) -> None:
        """Give ``size`` bytes back."""
        with self._lock:
            self._account(-size)

    def reserve(self, size: int) -> AbstractContextManager[object]:
        """A ``with`` block that has ``size`` bytes; see :meth:`acquire`."""
        return self._hold(size) if size else nullcontext()

    @contextmanager
    def _hold(self, size: int) -> Iterator[None]:
        self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def keep(self, acquired: int, pixels: NDArray[np.uint8]) -> None:
        """Of the bytes ``acquired``, give back those of ``pixels`` when the last view of them is gone, and
        the others now."""
        # NumPy makes the array that owns the memory, and never a view between, the base of each view.
        owner = pixels if pixels.base is None else pixels.base
        finalizer = weakref.finalize(owner, self._returned.append, pixels.nbytes)
        finalizer.atexit = False
        self.release(acquired - pixels.nbytes)

    def collect(self) -> None:
        """Account for the pixels that are gone. Every other method does so too."""
        self.release(0)

    def _take(self, size: int) -> bool:
        with self._lock:
            self._account(0)
            if self._used + size > self.limit:
                return False
            self._account(size)
            return True

    def _account(self, size: int) -> None:
        """Used bytes, up or down; under the lock."""
        while self._returned:
            size -= self._returned.popleft()
        if size:
            self._used += size
            DECODED_BYTES.set(self._used)


#: That of this process. A worker sets its limit; a tool on somebody's desk has none.
DECODED = DecodeBudget(sys.maxsize)


def limit_per_worker(settings: Settings) -> int:
    """Bytes that each worker may take."""
    if settings.decode_memory_mb:
        return int(settings.decode_memory_mb * 2**20)
    return max(MIN_LIMIT, int(MEMORY_SHARE * available_memory() / settings.worker_count))


def available_memory(limits: tuple[Path, ...] = CONTAINER_LIMITS) -> int:
    """Bytes of memory that the machine has, or the container may use."""
    memory_limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in limits:
        try:
            memory_limits.append(int(path.read_text()))
        except (OSError, ValueError):
            continue  # not there, or "max"
    return min(memory_limits)
