"""Limit the memory that a worker uses for decoding. A request acquires its share before it decodes."""

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
#: A body with at most this many of each mark is too small to account for.
MAX_UNCOUNTED_MARKS = 1000
#: A request that finds no room for this long is rejected. Other decodes usually end within that time.
MAX_WAIT_S = 5.0
#: A waiting request polls, because finalizers give bytes back without notifying anybody.
POLL_INTERVAL_S = 0.05
#: The default limit for all workers together, as a share of the available memory, and the least bytes for
#: each worker: enough for a PNG of 36 megapixels.
MEMORY_SHARE, MIN_LIMIT_BYTES = 0.25, 2**28
#: The kernel's memory limit of the container: version 2 and version 1 of control groups.
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class DecodeBudget:
    """At most ``limit`` bytes for running decodes and for decoded pixels that are still in use.

    JSON is parsed within :meth:`reserve`. For a picture, :meth:`acquire` the bytes of the peak; after the
    decode, :meth:`keep` the pixels' bytes, or :meth:`release` all if there is no result.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._lock = threading.Lock()
        #: Sizes of pixels that are gone, not yet subtracted. Finalizers append without the lock, because
        #: they may run while this class holds it.
        self._freed: deque[int] = deque()

    def acquire(self, size: int) -> None:
        """Wait for room, and take ``size`` bytes.

        Raises:
            TooLarge: ``size`` is more than the whole budget.
            Overloaded: There was no room for :data:`MAX_WAIT_S`.
            DeadlinePassed: The invocation's time is over.
        """
        if size > self.limit:
            raise TooLarge(
                f"decoding the body takes {size / 2**20:,.0f} MiB of memory; "
                f"at most {self.limit / 2**20:,.0f} MiB are accepted"
            )
        give_up_at = time.monotonic() + MAX_WAIT_S
        while not self._try_acquire(size):
            invocation_deadline = deadline.current()
            if invocation_deadline is not None:
                invocation_deadline.check()
            if time.monotonic() > give_up_at:
                raise Overloaded("the memory for pictures and large JSON is in use")
            time.sleep(POLL_INTERVAL_S)

    def release(self, size: int) -> None:
        """Give ``size`` bytes back."""
        with self._lock:
            self._account(-size)

    def reserve(self, size: int) -> AbstractContextManager[object]:
        """Acquire ``size`` bytes for a ``with`` block; see :meth:`acquire`."""
        return self._reserve(size) if size else nullcontext()

    @contextmanager
    def _reserve(self, size: int) -> Iterator[None]:
        self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def keep(self, acquired: int, pixels: NDArray[np.uint8]) -> None:
        """Keep the bytes of ``pixels`` until their last view is gone; release the rest of ``acquired``."""
        # The base of a view is the array that owns the memory, also if it is a view of a view.
        owner = pixels if pixels.base is None else pixels.base
        finalizer = weakref.finalize(owner, self._freed.append, pixels.nbytes)
        finalizer.atexit = False
        self.release(acquired - pixels.nbytes)

    def collect(self) -> None:
        """Subtract the bytes of pixels that are gone. Every other method does so too."""
        self.release(0)

    def _try_acquire(self, size: int) -> bool:
        with self._lock:
            self._account(0)
            if self._used + size > self.limit:
                return False
            self._account(size)
            return True

    def _account(self, size: int) -> None:
        """Add ``size``, which may be negative, and subtract what was freed. The caller holds the lock."""
        while self._freed:
            size -= self._freed.popleft()
        if size:
            self._used += size
            DECODED_BYTES.set(self._used)


#: The budget of this process. A worker sets its limit; a developer's tool has none.
DECODED = DecodeBudget(sys.maxsize)


def limit_per_worker(settings: Settings) -> int:
    """Return the bytes that each worker may use."""
    if settings.decode_memory_mb:
        return int(settings.decode_memory_mb * 2**20)
    return max(MIN_LIMIT_BYTES, int(MEMORY_SHARE * available_memory() / settings.worker_count))


def available_memory(limits: tuple[Path, ...] = CONTAINER_LIMITS) -> int:
    """Return the bytes of memory that the machine has, or that the container may use if that is less."""
    memory_limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in limits:
        try:
            memory_limits.append(int(path.read_text()))
        except (OSError, ValueError):
            continue  # not there, or "max"
    return min(memory_limits)
