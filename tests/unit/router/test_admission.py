"""Admission: each model has a share of the threads and a queue; a flooded model gets 429, not its neighbours."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from sm import metrics
from sm.errors import CallerGone, DeadlinePassed, Overloaded
from sm.invocation import Invocation
from sm.router.admission import MAX_MODELS, FairGate
from tests.support.boxes import wait_until
from tests.support.series import value

MODEL_SHARE, QUEUE_LIMIT = 4, 6
#: Seconds; only a hanging test waits this long.
TIMEOUT_S = 20.0


class Caller:
    """A request in a thread of its own: enters the gate, and leaves it when ``end`` is called."""

    def __init__(self, gate: FairGate, model: str, deadline: Invocation | None = None) -> None:
        self._gate, self._model, self._deadline = gate, model, deadline
        self.outcome: object = "waiting"
        self._may_leave = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._gate.enter(self._model, self._deadline)
        except Exception as error:
            self.outcome = type(error)
            return
        self.outcome = "served"
        self._may_leave.wait(TIMEOUT_S)
        self._gate.leave(self._model)

    def end(self) -> None:
        self._may_leave.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


def outcomes(callers: list[Caller]) -> list[object]:
    return [caller.outcome for caller in callers]


def counts(*models: str) -> list[tuple[float, float]]:
    """Return for each model how many slots it uses, and how many of its requests wait."""
    return [(value(metrics.served(model)), value(metrics.waiting(model))) for model in models]


def start_served(gate: FairGate, model: str, count: int) -> list[Caller]:
    """Start callers and wait until all are served."""
    callers = [Caller(gate, model) for _ in range(count)]
    wait_until(lambda: outcomes(callers) == ["served"] * count)
    return callers


def start_waiting(gate: FairGate, model: str, count: int, deadline: Invocation | None = None) -> list[Caller]:
    """Start callers that have to wait, the first in line first."""
    callers = []
    for _ in range(count):
        now_waiting = value(metrics.waiting(model)) + 1
        callers.append(Caller(gate, model, deadline))
        wait_until(partial(lambda count: value(metrics.waiting(model)) == count, now_waiting))
    return callers


@contextmanager
def ending(*groups: list[Caller]) -> Iterator[None]:
    """End all callers after the block."""
    try:
        yield
    finally:
        for group in groups:
            for caller in group:
                caller.end()


def fill_box(gate: FairGate, model: str) -> tuple[list[Caller], list[Caller]]:
    """Fill the box's 8 slots and 6 places in queues. Return who waits, of a flooded model, and who is served."""
    served = start_served(gate, "flooded", MODEL_SHARE) + start_served(gate, model, 2)
    waiting = start_waiting(gate, "flooded", QUEUE_LIMIT)
    return waiting, served + start_served(gate, "other", 1) + start_served(gate, "more", 1)


@pytest.fixture
def gate() -> Iterator[FairGate]:
    """A gate that has room for as many as before at the end of the test."""
    gate = FairGate(MODEL_SHARE, QUEUE_LIMIT)
    yield gate
    assert not gate.has_queue
    waiting, served = fill_box(gate, "model")
    with ending(served, waiting):
        assert outcomes(waiting) == ["waiting"] * QUEUE_LIMIT


def test_a_model_alone_may_use_its_whole_share_and_no_more(gate: FairGate) -> None:
    with ending(start_served(gate, "a", MODEL_SHARE), start_waiting(gate, "a", 2)):
        assert counts("a") == [(MODEL_SHARE, 2)]


def test_a_quiet_model_is_served_at_once_beside_a_flooded_one(gate: FairGate) -> None:
    with ending(
        start_served(gate, "flooded", MODEL_SHARE),
        start_waiting(gate, "flooded", QUEUE_LIMIT),
        start_served(gate, "quiet", 1),
    ):
        assert counts("flooded", "quiet") == [(MODEL_SHARE, QUEUE_LIMIT), (1, 0)]


def test_stalled_models_leave_a_place_for_every_other_model(gate: FairGate) -> None:
    """Each stalled model keeps all the slots that it may have."""
    stalled = [start_served(gate, "stalled0", MODEL_SHARE), start_waiting(gate, "stalled0", 1)]
    with ending(*stalled, *(start_served(gate, f"stalled{index}", 1) for index in range(1, 6))):
        start_served(gate, "healthy", 1)[0].end()


def test_a_free_place_goes_to_the_model_that_is_served_least(gate: FairGate) -> None:
    """Of 8 slots "a" has 4 and "b" has 2, so "b" gets the next slot that becomes free."""
    served_a, served_b = start_served(gate, "a", MODEL_SHARE), start_served(gate, "b", 2)
    waiting_a, waiting_b = start_waiting(gate, "a", 2), start_waiting(gate, "b", 2)
    with ending(served_a, served_b, waiting_b, waiting_a):
        served_a[0].end()
        wait_until(lambda: waiting_b[0].outcome == "served")
        assert outcomes([*waiting_a, waiting_b[1]]) == ["waiting"] * 3


def test_in_a_full_box_the_newest_request_of_the_longest_queue_is_refused(gate: FairGate) -> None:
    models = ("flooded", "quiet")
    before = [value(metrics.rejected(model)) for model in models]
    waiting, others = fill_box(gate, "quiet")
    with ending(others, waiting):
        others.append(Caller(gate, "quiet"))
        wait_until(lambda: waiting[-1].outcome is Overloaded)
        assert outcomes(waiting[:-1]) == ["waiting"] * (QUEUE_LIMIT - 1)
        with pytest.raises(Overloaded) as caught:
            gate.enter("flooded")
        assert caught.value.retry_after
        assert caught.value.details["model"] == "flooded"
    after = [value(metrics.rejected(model)) for model in models]
    assert after == [before[0] + 2, before[1]]


def test_nobody_loses_a_place_to_a_request_that_is_refused_itself(gate: FairGate) -> None:
    train(gate, 30.0)
    waiting, others = fill_box(gate, "model")
    with ending(others, waiting):
        with pytest.raises(Overloaded):
            gate.enter("model", Invocation(time.monotonic() + 10.0))
        assert outcomes(waiting) == ["waiting"] * QUEUE_LIMIT


@pytest.mark.parametrize("error", [DeadlinePassed, CallerGone])
def test_a_request_leaves_the_queue_at_its_deadline_or_when_its_caller_disconnects(
    gate: FairGate, error: type[Exception]
) -> None:
    is_over = threading.Event()
    deadline = Invocation(math.inf, lambda: is_over.is_set() and error is CallerGone)
    served = start_served(gate, "a", MODEL_SHARE)
    leaving, staying = start_waiting(gate, "a", 2, deadline), start_waiting(gate, "a", 1)
    with ending(served, staying):
        is_over.set()
        if error is DeadlinePassed:
            deadline.at = 0.0
        wait_until(lambda: outcomes(leaving) == [error, error])
        assert counts("a") == [(MODEL_SHARE, 1)]
        served[0].end()
        wait_until(lambda: staying[0].outcome == "served")


def test_the_memory_of_models_without_requests_is_bounded(
    gate: FairGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The names of models that are counted one by one are limited, and other tests of this process need some.
    monkeypatch.setattr(metrics, "MODELS", metrics.Labels(64))
    for index in range(2 * MAX_MODELS):
        gate.enter(f"model{index}")
        gate.leave(f"model{index}")
    assert len(gate._models) <= MAX_MODELS


def test_under_heavy_load_every_request_ends_and_every_limit_holds(gate: FairGate) -> None:
    lock, in_flight, highest = threading.Lock(), Counter[str](), Counter[str]()

    def send_requests(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(40):
            model = rng.choice("aaaaaaabbc")
            deadline = Invocation(time.monotonic() + rng.choice((0.001, 5)), lambda: rng.random() < 0.1)
            try:
                gate.enter(model, deadline)
            except (Overloaded, DeadlinePassed, CallerGone):
                continue
            with lock:
                in_flight[model] += 1
                highest[model] = max(highest[model], in_flight[model])
            time.sleep(rng.random() / 1000)
            with lock:
                in_flight[model] -= 1
            gate.leave(model)
        return seed

    with ThreadPoolExecutor(30) as callers:
        assert len(list(callers.map(send_requests, range(30), timeout=TIMEOUT_S))) == 30
    assert 0 < max(highest.values()) <= MODEL_SHARE
    assert counts(*"abc") == [(0, 0)] * 3


def train(gate: FairGate, seconds: float, requests: int = 40) -> None:
    """Let a model serve requests that take so long each."""
    for _ in range(requests):
        gate.enter("model")
        gate.leave("model", seconds)


def waiting_caller(gate: FairGate, seconds: float) -> Caller:
    """A request with so many seconds left, which waits or is refused."""
    caller = Caller(gate, "model", Invocation(time.monotonic() + seconds))
    wait_until(lambda: caller.outcome != "waiting" or gate.has_queue)
    return caller


@contextmanager
def full(gate: FairGate) -> Iterator[list[Caller]]:
    """All slots of the model are in use."""
    callers = start_served(gate, "model", MODEL_SHARE)
    with ending(callers):
        yield callers


def test_a_request_that_cannot_be_served_in_time_is_refused_at_once_and_told_when_to_come_again(
    gate: FairGate,
) -> None:
    train(gate, 30.0)
    with full(gate):
        with pytest.raises(Overloaded) as refused:
            gate.enter("model", Invocation(time.monotonic() + 10.0))
        # Its turn would come after 30 s / 4 slots and a quarter more, and it would take 30 s.
        assert refused.value.retry_after == 30
        assert not gate.has_queue


@pytest.mark.parametrize(
    ("history", "seconds"),
    [([], 1.0), ([(2.0, 40)], 60.0), ([(100.0, 40), (0.001, 100)], 5.0)],
    ids=["of an unknown time", "with enough time", "that became fast again"],
)
def test_a_request_of_a_model_waits(gate: FairGate, history: list[tuple[float, int]], seconds: float) -> None:
    for taken, requests in history:
        train(gate, taken, requests)
    with full(gate) as callers:
        caller = waiting_caller(gate, seconds)
        assert caller.outcome == "waiting"
        callers[0].end()
        wait_until(lambda: caller.outcome == "served")
        caller.end()


def test_a_free_slot_is_never_refused_however_slow_the_model_was(gate: FairGate) -> None:
    train(gate, 1000.0)
    gate.enter("model", Invocation(time.monotonic() + 1.0))
    gate.leave("model", 0.01)


def test_a_request_whose_model_became_slow_while_it_waited_is_refused_at_its_turn(gate: FairGate) -> None:
    train(gate, 0.1)
    gate.enter("model")
    with ending(start_served(gate, "model", MODEL_SHARE - 1)):
        caller = waiting_caller(gate, 5.0)
        gate.leave("model", 1000.0)
        wait_until(lambda: caller.outcome is Overloaded)


@pytest.mark.parametrize(
    ("seconds", "error"), [(0.0, DeadlinePassed), (0.01, Overloaded)], ids=["an unknown time", "a known time"]
)
def test_a_deadline_that_passes_in_the_queue_of_a_model_of(
    gate: FairGate, seconds: float, error: type[Exception]
) -> None:
    if seconds:
        train(gate, seconds)
    with full(gate), pytest.raises(error):
        gate.enter("model", Invocation(time.monotonic() + 0.3))
