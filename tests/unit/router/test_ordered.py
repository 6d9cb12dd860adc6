"""Many items of one request: their results in order, a few of them begun at a time, and an end to the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.deadline import Deadline, current, running
from sm.errors import CallerGone
from sm.router.ordered import MAX_BATCH, MAX_BATCHES_PER_THREAD, OrderedRunner

THREADS = 4
#: Items that may have been begun when the work is stopped.
IN_FLIGHT = THREADS * MAX_BATCHES_PER_THREAD * MAX_BATCH


@pytest.fixture
def runner() -> Iterator[OrderedRunner]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield OrderedRunner(pool, THREADS)


class Work:
    """Counts what is begun."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.begun: list[int] = []
        self._seconds = seconds

    def __call__(self, item: int) -> int:
        self.begun.append(item)
        time.sleep(self._seconds)
        return item


def late() -> int:
    return -1


def test_results_are_in_order_whatever_is_done_first(runner: OrderedRunner) -> None:
    def work(item: int) -> int:
        time.sleep(0.003 if item % 50 == 0 else 0)
        return item

    assert list(runner.run(range(2000), work, late)) == list(range(2000))


def test_slow_items_run_side_by_side(runner: OrderedRunner) -> None:
    meeting = threading.Barrier(THREADS, timeout=10)
    assert len(list(runner.run(range(2 * THREADS), lambda _: meeting.wait(), late))) == 2 * THREADS


def test_only_as_many_are_taken_as_may_be_in_flight(runner: OrderedRunner) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100_000):
            taken.append(item)
            yield item

    results = runner.run(items(), Work(), late)
    assert [next(results) for _ in range(1000)] == list(range(1000))
    assert len(taken) <= 1000 + IN_FLIGHT + MAX_BATCH


def test_items_run_under_the_deadline_of_their_request(runner: OrderedRunner) -> None:
    with running(Deadline(time.monotonic() + 60, request_id="mine")):
        found = list(runner.run(range(100), lambda _: current(), late))
    assert {deadline.request_id for deadline in found if isinstance(deadline, Deadline)} == {"mine"}


def test_after_the_deadline_nothing_is_begun_and_every_item_has_a_result(runner: OrderedRunner) -> None:
    work = Work(0.01)
    with running(Deadline(time.monotonic() + 0.2)):
        results = list(runner.run(range(100_000), work, late))
    assert len(results) == 100_000
    assert results[: len(work.begun)] == sorted(work.begun)
    assert set(results[len(work.begun) :]) == {-1}
    assert 0 < len(work.begun) < 1000


def test_a_caller_that_hangs_up_ends_the_work(runner: OrderedRunner) -> None:
    work = Work(0.001)
    with running(Deadline(time.monotonic() + 60, lambda: len(work.begun) > 50)), pytest.raises(CallerGone):
        list(runner.run(range(100_000), work, late))
    time.sleep(0.1)
    assert len(work.begun) <= 51 + IN_FLIGHT


def test_results_that_nobody_wants_any_more_are_not_made(runner: OrderedRunner) -> None:
    work = Work(0.001)
    results = runner.run(range(100_000), work, late)
    next(results)
    results.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert len(work.begun) <= IN_FLIGHT
