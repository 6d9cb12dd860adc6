"""The pool of shared-memory regions of one worker: bounded, reused, never released too early.

A region is *idle*, *leased* to one request, or *retired*: its file is gone, but Triton may still map it and
even write to it, because a request was given up before its answer came. A retired region is never used
again. It counts against the budget until Triton no longer lists it, because Triton refuses or delays to unmap
a region while a request uses it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import NotReady, TriremeError
from sm.metrics import SHARED_BYTES
from sm.polling import WATCH_S, poll_until
from sm.triton.channel import Channel

log = logging.getLogger(__name__)

#: Seconds that closing waits for regions in use.
CLOSE_TIMEOUT_S = 0.3
#: After the machine or Triton refused a region, no new one is tried for this long.
RETRY_PAUSE_S = 10.0
#: The smallest region, and the smallest step between two sizes.
MIN_REGION_BYTES = 2**16


@dataclass(eq=False)
class Region:
    """A mapped file. Its name is the region's name in Triton."""

    path: Path
    size: int
    memory: mmap.mmap
    #: The start of Triton with which it is registered, as the pool counts them; 0 for none.
    registered_with: int = 0
    #: The last request message that was built for it, with the key of the requests that may reuse it.
    message: tuple[object, Any] = (None, None)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path, size: int) -> Region:
        """Create the file and map it. Raises ``OSError`` if the folder is full.

        The space is reserved now: without it a later write would be a SIGBUS, here or in Triton.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return cls(path, size, mmap.mmap(descriptor, size))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the file. Processes that have it mapped, Triton included, keep the memory."""
        self.path.unlink(missing_ok=True)


class Lease:
    """The use of a region by one request, for as long as an array refers to its ``memory``, uint8 [size].

    Args:
        region: The region.
        give_back: Called with the region when the last array is gone. That may be in any thread and within
            any code, so it must not take a lock.
    """

    def __init__(self, region: Region, give_back: Callable[[Region], object]) -> None:
        self.region = region
        self.memory: NDArray[np.uint8] = np.frombuffer(region.memory, np.uint8)
        # The base of each view is this array, also if it is a view of a view.
        self._finalizer = weakref.finalize(self.memory, give_back, region)
        self._finalizer.atexit = False

    def take(self) -> Region:
        """Keep the region: ``give_back`` is not called."""
        self._finalizer.detach()
        return self.region


def round_up(size: int) -> int:
    """Round up to one of eight sizes per power of two, so that requests of similar sizes share regions."""
    step = max(MIN_REGION_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class RegionPool:
    """At most ``budget`` bytes of regions. Their files are in ``folder`` and begin with ``prefix``."""

    def __init__(self, channel: Channel, budget: int, prefix: str, folder: Path) -> None:
        self._channel = channel
        self._budget = budget
        # The random part is for a later process with the same pid: Triton must not take its region for this
        # one's.
        self._prefix = f"{prefix}{secrets.token_hex(4)}-"
        self._folder = folder
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        #: Least recently used first.
        self._idle: list[Region] = []
        self._retired: list[Region] = []
        #: Regions whose leases have ended. Finalizers append to it without the lock, because they may run
        #: while this class holds it.
        self._returned: deque[Region] = deque()
        self._regions: set[Region] = set()
        self._reserved_bytes = 0
        #: Counts the starts of Triton that this pool noticed.
        self._triton_start = 1
        self._next_reap = 0.0
        self._paused_until = 0.0
        self._logged_reasons: set[str] = set()

    def lease(self, size: int) -> Lease | None:
        """Lease a region of at least ``size`` bytes that is registered with Triton.

        Returns:
            None if there is no region, so that the tensors must be sent as bytes.

        Raises:
            NotReady: Triton does not answer.
        """
        if self._retired:
            self._reap()
        region = self._take_idle(size) or self._create_region(round_up(size))
        if region is None:
            return None
        lease = Lease(region, self._returned.append)
        return lease if region.registered_with == self._triton_start or self._register(lease) else None

    def forget_registrations(self, lease: Lease) -> None:
        """Register all regions again before their next use: Triton was restarted, as it refused ``lease``."""
        with self._lock:
            if lease.region.registered_with == self._triton_start:
                self._triton_start += 1

    def retire(self, lease: Lease) -> None:
        """Never use the region again: its request was given up, and Triton may still write to it."""
        self._retire([lease.take()])

    def close(self) -> None:
        """Remove every file. Arrays that are still referenced keep their memory."""
        with self._lock:
            self._budget = 0
            regions, self._regions = self._regions, set()
            self._idle, self._retired = [], []
            self._account(-self._reserved_bytes)
        for region in regions:
            region.unlink()

        # Triton answers a request a moment before it allows to unmap its region.
        def unmap() -> bool:
            in_use = self._unmap(regions)
            regions.intersection_update([region for region in regions if region.name in in_use])
            return not regions

        with contextlib.suppress(TriremeError):
            poll_until(unmap, CLOSE_TIMEOUT_S if regions else 0.0)

    def _take_idle(self, size: int) -> Region | None:
        """Take the smallest idle region that is large enough; among equals the last used, which is cached."""
        with self._lock:
            self._collect()
            best: Region | None = None
            for region in self._idle:
                if region.size >= size and (best is None or region.size <= best.size):
                    best = region
            if best is not None:
                self._idle.remove(best)
            return best

    def _collect(self) -> None:
        """Make the regions idle whose leases have ended. The caller holds the lock."""
        while self._returned:
            region = self._returned.popleft()
            if region in self._regions:
                self._idle.append(region)

    def _create_region(self, size: int) -> Region | None:
        """Create a region, if necessary in the place of idle ones; None if there is no room."""
        if time.monotonic() < self._paused_until:
            return None
        if not self._reserve(size) and not (self._evict(size) and self._reserve(size)):
            self._log_once("budget", f"the worker's {self._budget} bytes of shared memory are in use")
            return None
        path = self._folder / f"{self._prefix}{next(self._numbers)}"
        try:
            region = Region.create(path, size)
        except OSError as error:
            self._pause("folder", f"{self._folder} has no room for {size} bytes: {error.strerror}")
            with self._lock:
                self._account(-size)
            return None
        with self._lock:
            self._regions.add(region)
        return region

    def _reserve(self, size: int) -> bool:
        with self._lock:
            if self._reserved_bytes + size > self._budget:
                return False
            self._account(size)
            return True

    def _evict(self, size: int) -> bool:
        """Retire idle regions, the least recently used first. False if that makes no room for ``size``."""
        with self._lock:
            self._collect()
            missing = self._reserved_bytes + size - self._budget
            if missing > sum(region.size for region in self._idle):
                return False
            evicted = []
            while missing > 0:
                evicted.append(self._idle.pop(0))
                missing -= evicted[-1].size
        self._retire(evicted)
        self._next_reap = 0.0
        self._reap()
        return True

    def _register(self, lease: Lease) -> bool:
        """Register the region with Triton. If Triton refuses, retire the region and return False."""
        region, triton_start = lease.region, self._triton_start
        try:
            self._channel.register(region.name, region.size)
        except NotReady:
            raise
        except TriremeError as error:
            self.retire(lease)
            self._pause("triton", error.sentence)
            return False
        region.registered_with = triton_start
        return True

    def _retire(self, regions: list[Region]) -> None:
        for region in regions:
            region.unlink()
        with self._lock:
            self._retired.extend(region for region in regions if region in self._regions)

    def _reap(self) -> None:
        """Return the bytes of retired regions to the budget once Triton does not map them any more."""
        with self._lock:
            if not self._retired or time.monotonic() < self._next_reap:
                return
            self._next_reap = time.monotonic() + WATCH_S
            retired = list(self._retired)
        try:
            in_use = self._unmap(retired)
        except TriremeError:
            return
        with self._lock:
            for region in retired:
                if region.name not in in_use and region in self._regions:
                    self._retired.remove(region)
                    self._regions.remove(region)
                    self._account(-region.size)

    def _unmap(self, regions: Iterable[Region]) -> set[str]:
        """Ask Triton to unmap ``regions``; return the names of all regions that it still maps."""
        for region in regions:
            try:
                self._channel.unregister(region.name)
            except NotReady:
                raise
            except TriremeError:
                continue
        return self._channel.registered()

    def _pause(self, reason: str, sentence: str) -> None:
        self._paused_until = time.monotonic() + RETRY_PAUSE_S
        self._log_once(reason, sentence)

    def _log_once(self, reason: str, sentence: str) -> None:
        """Log a reason once per process, not with every request."""
        if reason not in self._logged_reasons:
            self._logged_reasons.add(reason)
            log.warning("large tensors go through gRPC instead of shared memory: %s", sentence)

    def _account(self, size: int) -> None:
        """Add ``size``, which may be negative, to the bytes in use. The caller holds the lock."""
        self._reserved_bytes += size
        SHARED_BYTES.set(self._reserved_bytes)
