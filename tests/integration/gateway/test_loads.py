"""A load is shared by all who wait for it, and outlives the request that began it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from chalicelib.failures import LoadFailed
from chalicelib.loads import Loads

from sm.deadline import Deadline, running
from sm.errors import BadInput, DeadlinePassed
from tests.support.boxes import wait_until


def test_all_who_wait_share_one_load() -> None:
    loads, began, end, seen = Loads(), threading.Event(), threading.Event(), []

    def load() -> None:
        seen.append(1)
        began.set()
        assert end.wait(10)

    with ThreadPoolExecutor(8) as callers:
        waiting = [callers.submit(loads.share, "m", load) for _ in range(8)]
        assert began.wait(10)
        wait_until(lambda: not any(future.done() for future in waiting))
        # Another model does not wait for it.
        loads.share("other", lambda: seen.append(2))
        end.set()
        assert [future.result(10) for future in waiting] == [None] * 8
    assert seen == [1, 2]
    loads.share("m", lambda: seen.append(3))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("error", [BadInput("no such luck"), OSError("no such luck")])
def test_its_reason_is_told_to_each_and_the_next_one_tries_again(error: Exception) -> None:
    loads = Loads()

    def fail() -> None:
        time.sleep(0.1)
        raise error

    def share(_: int) -> str:
        with pytest.raises(LoadFailed) as raised:
            loads.share("m", fail)
        return raised.value.sentence

    with ThreadPoolExecutor(4) as callers:
        reasons = set(callers.map(share, range(4)))
    assert reasons in ({"no such luck"}, {"unexpected OSError"})
    loads.share("m", lambda: None)


def test_a_caller_without_time_leaves_and_the_load_goes_on() -> None:
    loads, end, done = Loads(), threading.Event(), threading.Event()

    def load() -> None:
        assert end.wait(10)
        done.set()

    with running(Deadline(time.monotonic() + 0.1)), pytest.raises(DeadlinePassed, match="still being loaded"):
        loads.share("m", load)
    end.set()
    assert done.wait(10)
