"""Requests in threads that share a gate, as in a worker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from sm.errors import Overloaded
from sm.invocation import running
from sm.router.admission import Admission, FairGate
from sm.router.running_invocation import RunningInvocation
from tests.support.boxes import wait_until

#: Runs a function within a request of its own.
Run = Callable[[Callable[[], object]], Future[object]]


@contextmanager
def waiting_requests(wait: Callable[[], object], go_on: Callable[[], object]) -> Iterator[Run]:
    """Let eight requests wait for one model: two have its slots and two its queue, the others are refused.

    In the block there are slots for requests of other models. After it ``go_on`` ends the wait.
    """
    gate = FairGate(share=2, room=2)

    def run(function: Callable[[], object]) -> object:
        invocation = RunningInvocation(time.monotonic() + 60, request_id="id")
        with running(invocation), invocation:
            invocation.slot = Admission(gate)
            return function()

    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(run, wait) for _ in range(8)]
        try:
            wait_until(lambda: sum(each.done() for each in waiting) == 4, description="those above the share")
            yield lambda function: pool.submit(run, function)
            assert sum(each.done() for each in waiting) == 4
        finally:
            go_on()
    assert Counter(type(each.exception()) for each in waiting) == {Overloaded: 4, type(None): 4}
