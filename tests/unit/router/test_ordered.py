"""The ordered runner gives results in order, starts few items at a time, and stops when the request ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.deadline import Deadline, current, running
from sm.errors import CallerGone
from sm.router.lists import MAX_BATCH, MAX_BATCHES_PER_THREAD, OrderedRunner

THREADS = 4
#: Items that may have been started when the work is stopped.
MAX_IN_FLIGHT = THREADS * MAX_BATCHES_PER_THREAD * MAX_BATCH


@pytest.fixture
def runner() -> Iterator[OrderedRunner]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield OrderedRunner(pool, THREADS)


class RecordingWork:
    """Records the items that are started."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.started: list[int] = []
        self._seconds = seconds

    def __call__(self, item: int) -> int:
        self.started.append(item)
        time.sleep(self._seconds)
        return item


def result_after_deadline() -> int:
    return -1


def test_results_are_in_order_whichever_ends_first(runner: OrderedRunner) -> None:
    def work(item: int) -> int:
        time.sleep(0.003 if item % 50 == 0 else 0)
        return item

    assert list(runner.run(range(2000), work, result_after_deadline)) == list(range(2000))


def test_slow_items_run_concurrently(runner: OrderedRunner) -> None:
    barrier = threading.Barrier(THREADS, timeout=10)
    assert (
        len(list(runner.run(range(2 * THREADS), lambda _: barrier.wait(), result_after_deadline)))
        == 2 * THREADS
    )


def test_only_as_many_items_are_consumed_as_may_be_in_flight(runner: OrderedRunner) -> None:
    consumed: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100_000):
            consumed.append(item)
            yield item

    results = runner.run(items(), RecordingWork(), result_after_deadline)
    assert [next(results) for _ in range(1000)] == list(range(1000))
    assert len(consumed) <= 1000 + MAX_IN_FLIGHT + MAX_BATCH


def test_items_run_under_the_deadline_of_their_request(runner: OrderedRunner) -> None:
    def current_request_id(_: int) -> str:
        deadline = current()
        return deadline.request_id if deadline else "no deadline"

    with running(Deadline(time.monotonic() + 60, request_id="mine")):
        request_ids = list(runner.run(range(100), current_request_id, lambda: "late"))
    assert request_ids == ["mine"] * 100


def test_after_the_deadline_no_item_is_started_and_every_item_has_a_result(runner: OrderedRunner) -> None:
    work = RecordingWork(0.001)

    class CountedDeadline(Deadline):
        """Passes when some items are started, however long that takes."""

        def remaining(self) -> float:
            return 60.0 if len(work.started) < 50 else 0.0

    with running(CountedDeadline(math.inf)):
        results = list(runner.run(range(100_000), work, result_after_deadline))
    started = set(work.started)
    # A thread may take an item before the deadline passes, and see afterwards that it has passed.
    assert results == [item if item in started else -1 for item in range(100_000)]
    assert 50 <= len(started) <= 50 + MAX_IN_FLIGHT


def test_when_the_caller_disconnects_the_work_ends(runner: OrderedRunner) -> None:
    work = RecordingWork(0.001)
    with running(Deadline(time.monotonic() + 60, lambda: len(work.started) > 50)), pytest.raises(CallerGone):
        list(runner.run(range(100_000), work, result_after_deadline))
    time.sleep(0.1)
    assert len(work.started) <= 51 + MAX_IN_FLIGHT


def test_a_caller_that_leaves_is_noticed_among_late_items_too(runner: OrderedRunner) -> None:
    is_gone = False
    with running(Deadline(time.monotonic(), lambda: is_gone)):
        results = runner.run(range(100_000), RecordingWork(), result_after_deadline)
        assert next(results) == -1
        is_gone = True
        with pytest.raises(CallerGone):
            list(results)


def test_after_the_results_are_closed_no_item_is_started(runner: OrderedRunner) -> None:
    work = RecordingWork(0.001)
    results = runner.run(range(100_000), work, result_after_deadline)
    next(results)
    results.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert len(work.started) <= MAX_IN_FLIGHT
