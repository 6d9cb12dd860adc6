"""A load is shared by all callers that wait for it, and outlives the request that started it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from chalicelib.failures import LoadFailed
from chalicelib.loads import Loads

from sm.errors import BadInput, DeadlinePassed
from sm.invocation import Invocation, running
from tests.support.boxes import wait_until


def test_concurrent_callers_share_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, release, calls = Loads(), threading.Event(), []
    waiting: list[None] = []
    # A caller asks for its deadline when it has found or started the load that it waits for.
    monkeypatch.setattr("chalicelib.loads.current", lambda: waiting.append(None))

    def load() -> None:
        calls.append(1)
        assert release.wait(10)

    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(loads.share, "m", load) for _ in range(8)]
        wait_until(lambda: len(waiting) == 8)
        assert not any(future.done() for future in pending)
        # Another model's load does not wait for this one.
        loads.share("other", lambda: calls.append(2))
        release.set()
        assert [future.result(10) for future in pending] == [None] * 8
    assert calls == [1, 2]
    loads.share("m", lambda: calls.append(3))
    assert calls == [1, 2, 3]


@pytest.mark.parametrize("error", [BadInput("no such luck"), OSError("no such luck")])
def test_every_waiting_caller_gets_the_reason_of_a_failed_load_and_the_next_tries_again(
    error: Exception,
) -> None:
    loads = Loads()

    def fail() -> None:
        time.sleep(0.1)
        raise error

    def failure_reason(_: int) -> str:
        with pytest.raises(LoadFailed) as raised:
            loads.share("m", fail)
        return raised.value.sentence

    with ThreadPoolExecutor(4) as pool:
        reasons = set(pool.map(failure_reason, range(4)))
    assert reasons in ({"no such luck"}, {"unexpected OSError"})
    loads.share("m", lambda: None)


def test_a_caller_past_its_deadline_leaves_and_the_load_continues() -> None:
    loads, release, finished = Loads(), threading.Event(), threading.Event()

    def load() -> None:
        assert release.wait(10)
        finished.set()

    with (
        running(Invocation(time.monotonic() + 0.1)),
        pytest.raises(DeadlinePassed),
    ):
        loads.share("m", load)
    release.set()
    assert finished.wait(10)
