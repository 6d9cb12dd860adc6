"""The pool of shared-memory regions of one worker: bounded, reused, never released too early.

A region is *idle*, *leased* to one request, or *retired*: its file is gone, but Triton may still have it
mapped and may even be writing to it, because a request was given up before its answer came. A retired
region is never used again. It counts against the budget until Triton no longer lists it: Triton refuses
to let go of a region, or puts that off, while a request uses it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from sm.errors import NotReady, TriremeError
from sm.metrics import SHARED_BYTES
from sm.triton.regions import Lease, Region, round_up

log = logging.getLogger(__name__)

#: Seconds between two looks at retired regions.
REAP_INTERVAL_S = 0.2
#: Seconds that the end waits for regions in use, and between two tries.
PARTING, NEXT_TRY = 0.3, 0.02
#: Seconds without new regions after the machine or Triton refused one.
RETRY_PAUSE_S = 10.0


class Registrar(Protocol):
    """The calls to Triton that a pool makes; each raises :class:`TriremeError` if it fails."""

    def register(self, name: str, size: int) -> None: ...

    def unregister(self, name: str) -> None: ...

    def registered(self) -> set[str]: ...


class RegionPool:
    """At most ``budget`` bytes of regions, their files in ``folder`` beginning with ``prefix``."""

    def __init__(self, registrar: Registrar, budget: int, prefix: str, folder: Path) -> None:
        self._registrar = registrar
        self._budget = budget
        # A later process may have this one's pid: Triton would take its region for an old one.
        self._prefix = f"{prefix}{secrets.token_hex(4)}-"
        self._folder = folder
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        #: Least recently used first.
        self._idle: list[Region] = []
        self._retired: list[Region] = []
        #: Filled by leases that end, possibly amid this pool's own code: an append and no lock.
        self._returned: deque[Region] = deque()
        self._regions: set[Region] = set()
        self._held = 0
        self._triton = 1
        self._next_reap = 0.0
        self._paused_until = 0.0
        self._explained: set[str] = set()

    def lease(self, size: int) -> Lease | None:
        """A region of at least ``size`` bytes that Triton knows; None if the tensors must go another way.

        :class:`NotReady` if Triton is not there.
        """
        self._reap()
        region = self._take_idle(size) or self._grow(round_up(size))
        if region is None:
            return None
        lease = Lease(region, self._returned.append)
        return lease if region.known_to == self._triton or self._register(lease) else None

    def renew(self, lease: Lease) -> bool:
        """Triton does not know ``lease``'s region: it is a new one. Whether it knows the region now."""
        with self._lock:
            if lease.region.known_to == self._triton:
                self._triton += 1
        return self._register(lease)

    def retire(self, lease: Lease) -> None:
        """The request was given up, Triton may still write to its region: keep everyone else off it."""
        self._retire([lease.take()])

    def close(self) -> None:
        """Remove every file. Arrays that are still referenced keep their memory."""
        with self._lock:
            self._budget = 0
            regions, self._regions = self._regions, set()
            self._idle, self._retired = [], []
            self._account(-self._held)
        for region in regions:
            region.unlink()
        # Triton sends an answer a moment before it has done with the region, and refuses until then.
        end = time.monotonic() + PARTING
        with contextlib.suppress(TriremeError):
            while regions and time.monotonic() < end:
                in_use = self._let_go(regions)
                regions = {region for region in regions if region.name in in_use}
                time.sleep(NEXT_TRY if regions else 0)

    def _take_idle(self, size: int) -> Region | None:
        """The smallest idle region that is large enough; of equals the last used, its pages are warm."""
        with self._lock:
            self._collect()
            fitting = [region for region in reversed(self._idle) if region.size >= size]
            if not fitting:
                return None
            region = min(fitting, key=lambda candidate: candidate.size)
            self._idle.remove(region)
            return region

    def _collect(self) -> None:
        """Make idle what ended leases have given back."""
        while self._returned:
            region = self._returned.popleft()
            if region in self._regions:
                self._idle.append(region)

    def _grow(self, size: int) -> Region | None:
        if time.monotonic() < self._paused_until:
            return None
        if not self._reserve(size) and not (self._evict(size) and self._reserve(size)):
            self._explain("budget", f"the worker's {self._budget} bytes of shared memory are in use")
            return None
        path = self._folder / f"{self._prefix}{next(self._numbers)}"
        try:
            region = Region.create(path, size)
        except OSError as error:
            self._refused("folder", f"{self._folder} gives no {size} bytes: {error.strerror}")
            with self._lock:
                self._account(-size)
            return None
        with self._lock:
            self._regions.add(region)
        return region

    def _reserve(self, size: int) -> bool:
        with self._lock:
            if self._held + size > self._budget:
                return False
            self._account(size)
            return True

    def _evict(self, size: int) -> bool:
        """Retire idle regions, the least recently used first, if that makes room for ``size``."""
        with self._lock:
            self._collect()
            missing = self._held + size - self._budget
            if missing > sum(region.size for region in self._idle):
                return False
            victims = []
            while missing > 0:
                victims.append(self._idle.pop(0))
                missing -= victims[-1].size
        self._retire(victims)
        self._next_reap = 0.0
        self._reap()
        return True

    def _register(self, lease: Lease) -> bool:
        """Tell Triton of the region. If it refuses, the region is gone and the caller goes another way."""
        region, triton = lease.region, self._triton
        try:
            self._registrar.register(region.name, region.size)
        except NotReady:
            raise
        except TriremeError as error:
            self.retire(lease)
            self._refused("triton", error.sentence)
            return False
        region.known_to = triton
        return True

    def _retire(self, regions: list[Region]) -> None:
        for region in regions:
            region.unlink()
        with self._lock:
            self._retired.extend(region for region in regions if region in self._regions)

    def _reap(self) -> None:
        """Forget the retired regions that Triton has let go of (or a new Triton never had)."""
        with self._lock:
            if not self._retired or time.monotonic() < self._next_reap:
                return
            self._next_reap = time.monotonic() + REAP_INTERVAL_S
            retired = list(self._retired)
        try:
            in_use = self._let_go(retired)
        except TriremeError:
            return
        with self._lock:
            for region in retired:
                if region.name not in in_use and region in self._regions:
                    self._retired.remove(region)
                    self._regions.remove(region)
                    self._account(-region.size)

    def _let_go(self, regions: Iterable[Region]) -> set[str]:
        """Ask Triton to unmap ``regions``; the names of those it still has afterwards."""
        for region in regions:
            try:
                self._registrar.unregister(region.name)
            except NotReady:
                raise
            except TriremeError:
                continue
        return self._registrar.registered()

    def _refused(self, reason: str, sentence: str) -> None:
        self._paused_until = time.monotonic() + RETRY_PAUSE_S
        self._explain(reason, sentence)

    def _explain(self, reason: str, sentence: str) -> None:
        """Once per reason: under load it would be said with every request."""
        if reason not in self._explained:
            self._explained.add(reason)
            log.warning("large tensors go through gRPC instead of shared memory: %s", sentence)

    def _account(self, size: int) -> None:
        """Held bytes, up or down; under the lock."""
        self._held += size
        SHARED_BYTES.set(self._held)
