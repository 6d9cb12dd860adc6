"""Admission: each model has a share of the threads and a queue; a flooded model gets 429, not its neighbours."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
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
Caller = Future[None]


def outcomes(*callers: Caller) -> list[object]:
    """Return for each caller ``waiting``, ``served`` or the type of its error."""
    return [
        "waiting" if not caller.done() else type(caller.exception()) if caller.exception() else "served"
        for caller in callers
    ]


def counts(*models: str) -> list[tuple[float, float]]:
    """Return for each model how many slots it uses, and how many of its requests wait."""
    return [(value(metrics.served(model)), value(metrics.waiting(model))) for model in models]


class Callers:
    """Callers of a gate, each in a thread of its own."""

    def __init__(self, gate: FairGate, pool: ThreadPoolExecutor) -> None:
        self.gate, self._pool = gate, pool
        self._models: dict[Caller, str] = {}

    def start(self, model: str, deadline: Invocation | None = None) -> Caller:
        caller = self._pool.submit(self.gate.enter, model, deadline)
        self._models[caller] = model
        return caller

    def serve(self, model: str, count: int = 1) -> list[Caller]:
        """Start callers and wait until all are served."""
        callers = [self.start(model) for _ in range(count)]
        wait_until(lambda: outcomes(*callers) == ["served"] * count)
        return callers

    def queue(self, model: str, count: int, deadline: Invocation | None = None) -> list[Caller]:
        """Start callers that have to wait, the first in line first."""
        callers = []
        for _ in range(count):
            now_waiting = value(metrics.waiting(model)) + 1
            callers.append(self.start(model, deadline))
            wait_until(partial(lambda count: value(metrics.waiting(model)) == count, now_waiting))
        return callers

    def fill_box(self, model: str) -> list[Caller]:
        """Fill the box's 8 slots and 6 places in queues. Return who waits, all of them for a flooded model."""
        self.serve("flooded", MODEL_SHARE)
        self.serve(model, 2)
        waiting = self.queue("flooded", QUEUE_LIMIT)
        self.serve("other")
        self.serve("more")
        return waiting

    def end(self, caller: Caller) -> None:
        """Let a caller go: one who is served gives its slot back."""
        model = self._models.pop(caller)
        if not caller.exception(TIMEOUT_S):
            self.gate.leave(model)

    def end_all(self) -> None:
        while self._models:
            done, _ = futures.wait(self._models, TIMEOUT_S, futures.FIRST_COMPLETED)
            assert done, "somebody waits for ever"
            for caller in done:
                self.end(caller)


@pytest.fixture
def callers() -> Iterator[Callers]:
    """Callers of a gate that has room for as many as before at the end of the test."""
    with ThreadPoolExecutor(40) as pool:
        callers = Callers(FairGate(MODEL_SHARE, QUEUE_LIMIT), pool)
        yield callers
        callers.end_all()
        assert outcomes(*callers.fill_box("model")) == ["waiting"] * QUEUE_LIMIT
        callers.end_all()


@pytest.fixture
def gate(callers: Callers) -> FairGate:
    return callers.gate


def test_a_model_may_use_its_whole_share_and_a_quiet_one_is_served_at_once_beside_it(
    callers: Callers,
) -> None:
    callers.serve("flooded", MODEL_SHARE)
    callers.queue("flooded", QUEUE_LIMIT)
    callers.serve("quiet")
    assert counts("flooded", "quiet") == [(MODEL_SHARE, QUEUE_LIMIT), (1, 0)]


def test_stalled_models_leave_a_place_for_every_other_model(callers: Callers) -> None:
    """Each stalled model keeps all the slots that it may have."""
    callers.serve("stalled0", MODEL_SHARE)
    callers.queue("stalled0", 1)
    for model in ("stalled1", "stalled2", "stalled3", "stalled4", "stalled5", "healthy"):
        callers.serve(model)


def test_a_free_place_goes_to_the_model_that_is_served_least(callers: Callers) -> None:
    """Of 8 slots "a" has 4 and "b" has 2, so "b" gets the next slot that becomes free."""
    served, *_ = callers.serve("a", MODEL_SHARE)
    callers.serve("b", 2)
    waiting_a, (first_b, second_b) = callers.queue("a", 2), callers.queue("b", 2)
    callers.end(served)
    first_b.result(TIMEOUT_S)
    assert outcomes(*waiting_a, second_b) == ["waiting"] * 3


def test_in_a_full_box_the_newest_request_of_the_longest_queue_is_refused(
    callers: Callers, gate: FairGate
) -> None:
    models = ("flooded", "quiet")
    before = [value(metrics.rejected(model)) for model in models]
    *others, newest = callers.fill_box("quiet")
    callers.start("quiet")
    with pytest.raises(Overloaded):
        newest.result(TIMEOUT_S)
    assert outcomes(*others) == ["waiting"] * (QUEUE_LIMIT - 1)
    with pytest.raises(Overloaded) as caught:
        gate.enter("flooded")
    assert caught.value.retry_after
    assert caught.value.details["model"] == "flooded"
    assert [value(metrics.rejected(model)) for model in models] == [before[0] + 2, before[1]]


def test_nobody_loses_a_place_to_a_request_that_is_refused_itself(callers: Callers, gate: FairGate) -> None:
    train(gate, 30.0)
    waiting = callers.fill_box("model")
    with pytest.raises(Overloaded):
        gate.enter("model", Invocation(time.monotonic() + 10.0))
    assert outcomes(*waiting) == ["waiting"] * QUEUE_LIMIT


@pytest.mark.parametrize("error", [DeadlinePassed, CallerGone])
def test_a_request_leaves_the_queue_at_its_deadline_or_when_its_caller_disconnects(
    callers: Callers, error: type[Exception]
) -> None:
    is_over = threading.Event()
    deadline = Invocation(math.inf, lambda: is_over.is_set() and error is CallerGone)
    served, *_ = callers.serve("a", MODEL_SHARE)
    leaving, (staying,) = callers.queue("a", 2, deadline), callers.queue("a", 1)
    is_over.set()
    if error is DeadlinePassed:
        deadline.at = 0.0
    wait_until(lambda: outcomes(*leaving) == [error, error])
    assert counts("a") == [(MODEL_SHARE, 1)]
    callers.end(served)
    staying.result(TIMEOUT_S)


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

    with ThreadPoolExecutor(30) as pool:
        assert len(list(pool.map(send_requests, range(30), timeout=TIMEOUT_S))) == 30
    assert 0 < max(highest.values()) <= MODEL_SHARE
    assert counts(*"abc") == [(0, 0)] * 3


def train(gate: FairGate, seconds: float, requests: int = 40) -> None:
    """Let a model serve requests that take so long each."""
    for _ in range(requests):
        gate.enter("model")
        gate.leave("model", seconds)


def test_a_request_that_cannot_be_served_in_time_is_refused_at_once_and_told_when_to_come_again(
    callers: Callers, gate: FairGate
) -> None:
    train(gate, 30.0)
    callers.serve("model", MODEL_SHARE)
    with pytest.raises(Overloaded) as refused:
        gate.enter("model", Invocation(time.monotonic() + 10.0))
    # Its turn would come after 30 s / 4 slots and a quarter more, and it would take 30 s.
    assert refused.value.retry_after == 30
    assert not gate.waiting


@pytest.mark.parametrize(
    ("history", "seconds"),
    [([], 1.0), ([(2.0, 40)], 60.0), ([(100.0, 40), (0.001, 100)], 5.0)],
    ids=["of an unknown time", "with enough time", "that became fast again"],
)
def test_a_request_of_a_model_waits(
    callers: Callers, gate: FairGate, history: list[tuple[float, int]], seconds: float
) -> None:
    for taken, requests in history:
        train(gate, taken, requests)
    served, *_ = callers.serve("model", MODEL_SHARE)
    (waiting,) = callers.queue("model", 1, Invocation(time.monotonic() + seconds))
    callers.end(served)
    waiting.result(TIMEOUT_S)


def test_a_free_slot_is_never_refused_however_slow_the_model_was(gate: FairGate) -> None:
    train(gate, 1000.0)
    gate.enter("model", Invocation(time.monotonic() + 1.0))
    gate.leave("model", 0.01)


def test_a_request_whose_model_became_slow_while_it_waited_is_refused_at_its_turn(
    callers: Callers, gate: FairGate
) -> None:
    train(gate, 0.1)
    gate.enter("model")
    callers.serve("model", MODEL_SHARE - 1)
    (waiting,) = callers.queue("model", 1, Invocation(time.monotonic() + 5.0))
    gate.leave("model", 1000.0)
    with pytest.raises(Overloaded):
        waiting.result(TIMEOUT_S)


def test_a_deadline_that_passes_in_the_queue_of_a_model_of_a_known_time_is_a_429(
    callers: Callers, gate: FairGate
) -> None:
    train(gate, 0.01)
    callers.serve("model", MODEL_SHARE)
    with pytest.raises(Overloaded):
        gate.enter("model", Invocation(time.monotonic() + 0.3))
