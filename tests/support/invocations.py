"""Requests in threads that share a gate, as in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sm.invocation import running
from sm.router.admission import Admission, FairGate
from sm.router.running_invocation import LogSample, RunningInvocation


class Callers:
    """Requests that run at the same time. ``with`` waits for their ends."""

    def __init__(self, gate: FairGate, count: int = 16) -> None:
        self._gate, self._pool = gate, ThreadPoolExecutor(count)

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def call(self, function: Callable[[], object]) -> Future[object]:
        """Call the function within a request of a minute."""
        return self._pool.submit(self._run, function)

    def _run(self, function: Callable[[], object]) -> object:
        request = RunningInvocation(time.monotonic() + 60, lambda: False, "id", None, LogSample())
        with running(request), request:
            request.slot = Admission(self._gate)
            return function()
