"""Admission: a share and a queue for each model, fair order between them, 429 for the one that is flooded."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from sm import metrics
from sm.deadline import Deadline, running
from sm.errors import CallerGone, DeadlinePassed, Overloaded
from sm.router.admission import Admission, FairGate
from sm.router.ordered import OrderedRunner

SHARE, ROOM = 4, 6
#: Seconds that no wait here comes near unless something hangs.
PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


class Caller:
    """A request in a thread of its own: it enters, and leaves when it is told to."""

    def __init__(self, gate: FairGate, model: str, limit: Deadline | None = None) -> None:
        self._gate, self._model, self._limit = gate, model, limit
        self.outcome: object = "waiting"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._gate.enter(self._model, lambda: self._limit)
        except Exception as error:
            self.outcome = type(error)
            return
        self.outcome = "served"
        self._end.wait(PATIENCE_S)
        self._gate.leave(self._model)

    @property
    def served(self) -> bool:
        return self.outcome == "served"

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def gate() -> FairGate:
    return FairGate(SHARE, ROOM)


def serve(gate: FairGate, model: str, count: int) -> list[Caller]:
    """Callers that are served."""
    callers = [Caller(gate, model) for _ in range(count)]
    until(lambda: all(caller.served for caller in callers))
    return callers


def queue(gate: FairGate, model: str, count: int, limit: Deadline | None = None) -> list[Caller]:
    """Callers that wait, the first in line first."""
    callers = []
    for _ in range(count):
        before = gate.counts()[2]
        callers.append(Caller(gate, model, limit))
        until(partial(lambda count: gate.counts()[2] == count, before + 1))
    return callers


@contextmanager
def ended(*groups: list[Caller]) -> Iterator[None]:
    try:
        yield
    finally:
        for group in groups:
            for caller in group:
                caller.end()


def test_a_model_alone_has_its_whole_share_and_no_more(gate: FairGate) -> None:
    with ended(serve(gate, "a", SHARE), queue(gate, "a", 2)):
        assert gate.counts() == (1, SHARE, 2)
    assert gate.counts() == (0, 0, 0)


def test_a_model_that_is_not_served_begins_at_once_beside_a_flooded_one(gate: FairGate) -> None:
    with ended(serve(gate, "flooded", SHARE), queue(gate, "flooded", ROOM), serve(gate, "quiet", 1)):
        assert gate.counts() == (2, SHARE + 1, ROOM)


def test_stalled_models_leave_a_place_to_every_other(gate: FairGate) -> None:
    """Each takes what it may and never gives it back."""
    stalled = [serve(gate, "stalled0", SHARE), queue(gate, "stalled0", 1)]
    for number in range(1, 6):
        stalled.append(serve(gate, f"stalled{number}", 1))
    with ended(*stalled):
        serve(gate, "healthy", 1)[0].end()


def test_a_place_goes_to_the_model_that_is_served_least_and_among_equals_in_turn(gate: FairGate) -> None:
    """Of 8 places "a" has 4, and "b" 2 of the 4 that are left: the places that fall free are those of both."""
    a, b = serve(gate, "a", SHARE), serve(gate, "b", 2)
    waiting_a, waiting_b = queue(gate, "a", 2), queue(gate, "b", 2)
    a[0].end()
    until(lambda: waiting_b[0].served)
    assert [caller.served for caller in (*waiting_a, *waiting_b)] == [False, False, True, False]
    with ended(a[1:], b, waiting_b, waiting_a):
        pass


def test_where_nobody_else_can_wait_the_newest_of_the_longest_queue_is_refused(gate: FairGate) -> None:
    flooded, waiting = serve(gate, "flooded", SHARE), queue(gate, "flooded", ROOM)
    quiet = serve(gate, "quiet", 2)
    before = rejected("flooded"), rejected("quiet")
    # 8 + 6 requests are as many as there may be: 12 are there, 2 more of others fill it.
    others = [*serve(gate, "other", 1), *serve(gate, "more", 1)]
    quiet.append(Caller(gate, "quiet"))
    until(lambda: waiting[-1].outcome is Overloaded)
    assert [caller.outcome for caller in waiting[:-1]] == ["waiting"] * (ROOM - 1)
    with pytest.raises(Overloaded, match="'flooded' are waiting") as refused:
        gate.enter("flooded")
    assert refused.value.retry_after
    assert (rejected("flooded") - before[0], rejected("quiet") - before[1]) == (2, 0)
    with ended(flooded, quiet, others, waiting):
        pass
    assert gate.counts() == (0, 0, 0)


def rejected(model: str) -> float:
    return metrics.rejected(model).value


def test_a_model_may_have_a_shorter_queue_than_all_together() -> None:
    gate = FairGate(SHARE, ROOM, model_room=1)
    with ended(serve(gate, "a", SHARE), queue(gate, "a", 1)):
        with pytest.raises(Overloaded):
            gate.enter("a")
        with ended(serve(gate, "b", 2), queue(gate, "b", 1)):
            assert gate.counts()[2] == 2


@pytest.mark.parametrize("ends", [DeadlinePassed, CallerGone])
def test_a_request_whose_time_is_over_or_whose_caller_left_leaves_the_queue(
    gate: FairGate, ends: type[Exception]
) -> None:
    passing = Deadline(
        time.monotonic() + (0.05 if ends is DeadlinePassed else 60), lambda: ends is CallerGone
    )
    served = serve(gate, "a", SHARE)
    gone = queue(gate, "a", 2, passing)
    stays = queue(gate, "a", 1)
    until(lambda: [caller.outcome for caller in gone] == [ends, ends])
    assert gate.counts() == (1, SHARE, 1)
    served[0].end()
    until(lambda: stays[0].served)
    with ended(served[1:], stays):
        pass
    assert gate.counts() == (0, 0, 0)


def test_nothing_of_two_hundred_models_is_kept(gate: FairGate) -> None:
    for number in range(200):
        gate.enter(f"model{number}")
        gate.leave(f"model{number}")
    assert gate.counts() == (0, 0, 0)
    assert gate._models == {}


def test_in_a_storm_every_request_ends_and_no_bound_is_broken() -> None:
    gate, lock = FairGate(SHARE, ROOM), threading.Lock()
    at_work: Counter[str] = Counter()
    worst: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()

    def call(number: int) -> None:
        dice = random.Random(number)
        for _ in range(40):
            model = dice.choice("aaaaaaabbc")
            limit = Deadline(time.monotonic() + dice.choice((0.001, 5)), lambda: dice.random() < 0.1)
            try:
                gate.enter(model, lambda limit=limit: limit)  # type: ignore[misc]
            except (Overloaded, DeadlinePassed, CallerGone) as error:
                with lock:
                    outcomes[type(error).__name__] += 1
                continue
            with lock:
                at_work[model] += 1
                worst[model] = max(worst[model], at_work[model])
                outcomes["served"] += 1
            time.sleep(dice.random() / 1000)
            with lock:
                at_work[model] -= 1
            gate.leave(model)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sum(outcomes.values()) == 30 * 40
    assert max(worst.values()) <= SHARE
    assert gate.counts() == (0, 0, 0)
    assert gate._models == {}
    assert gate._requests == 0
    for model in "abc":
        assert (metrics.served(model).value, metrics.waiting(model).value) == (0, 0)


def test_a_list_borrows_what_its_model_may_have_and_gives_it_back_to_who_waits() -> None:
    gate, go, rest = FairGate(SHARE, ROOM), threading.Event(), threading.Event()
    served: list[int] = []

    def work(item: int) -> int:
        served.append(gate.counts()[1])
        (go if item < SHARE else rest).wait(PATIENCE_S)
        return item

    def call() -> list[int]:
        admitted = Admission(gate)
        admitted.enter("a")
        with admitted, running(Deadline(time.monotonic() + 60)):
            results = list(runner.run(range(40), work, lambda: -1))
        admitted.leave()
        return results

    with ThreadPoolExecutor(SHARE) as executor, ThreadPoolExecutor(1) as caller:
        runner = OrderedRunner(executor, SHARE)
        listed = caller.submit(call)
        until(lambda: gate.counts()[1] == SHARE)
        # A second request of the model gets a place as soon as a record is done, not after the list.
        [waiting] = queue(gate, "a", 1)
        go.set()
        until(lambda: waiting.served)
        assert not listed.done()
        rest.set()
        waiting.end()
        assert listed.result(PATIENCE_S) == list(range(40))
    assert gate.counts() == (0, 0, 0)
