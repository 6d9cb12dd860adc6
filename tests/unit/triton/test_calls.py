"""A call waits for what is replaced and is sent once more; what it waits for is in a real shared file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm.errors import (
    CallerGone,
    DeadlinePassed,
    Interrupted,
    ModelCrashed,
    NotReady,
    Refused,
    TriremeError,
    Unavailable,
)
from sm.invocation import Invocation, Patience, Suspicion, Ticket
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SERVES, STARTS_AGAIN, STOPPED, UNSTABLE, SharedGeneration, now
from sm.triton.calls import Calls
from sm.triton.retries import MAX_TRITON_CRASHES, RESERVATION_S


@pytest.fixture
def shared(tmp_path: Path) -> SharedGeneration:
    return SharedGeneration.create(tmp_path / "generation")


@pytest.fixture
def deadline() -> Invocation:
    return Invocation(time.monotonic() + 10)


def calls_of(shared: SharedGeneration, seconds: float = 5.0, state: bool = False) -> Calls:
    return Calls(AnswerGuard(shared), lambda _: state, seconds, shared.path.parent)


def crash(shared: SharedGeneration) -> None:
    """What the supervisor and the control plane do when the model's process dies."""
    shared.take_out("m", now(), crashed=True)
    shared.admit("m", shared.out_since("m"))


def stall(shared: SharedGeneration) -> None:
    shared.take_out("m", now())
    shared.admit("m", shared.out_since("m"))


def lose(shared: SharedGeneration) -> None:
    """The model's process is gone for a moment."""
    shared.take_out("m", now())
    shared.refuse("m")
    threading.Timer(0.1, lambda: shared.admit("m", shared.out_since("m"))).start()


def end_triton(shared: SharedGeneration) -> None:
    shared.triton = STARTS_AGAIN

    def start() -> None:
        shared.admit_all()
        shared.triton = SERVES

    threading.Timer(0.05, start).start()


class Call:
    """A call of the model ``m`` that fails so often in a way, and then succeeds."""

    def __init__(self, *failures: Callable[[], None] | TriremeError) -> None:
        self.failures, self.sent, self.alone = list(failures), 0, list[str | None]()

    def __call__(self, ticket: Ticket) -> str:
        self.sent += 1
        self.alone.append(ticket.alone)
        if not self.failures:
            return "answer"
        failure = self.failures.pop(0)
        if isinstance(failure, TriremeError):
            raise failure
        failure()
        raise Interrupted("the process is gone")


def times(count: int, happen: Callable[[SharedGeneration], None], shared: SharedGeneration) -> Call:
    return Call(*[lambda: happen(shared)] * count)


def test_a_call_whose_process_died_is_sent_once_more(shared: SharedGeneration, deadline: Invocation) -> None:
    call = times(1, lose, shared)
    assert calls_of(shared).run("m", call, deadline) == "answer"
    assert (call.sent, deadline.repeats) == (2, 1)
    assert "wait" in deadline.stages


@pytest.mark.parametrize("state", [True, False])
def test_what_was_not_sent_yet_waits_also_if_it_may_not_repeat(
    shared: SharedGeneration, deadline: Invocation, state: bool
) -> None:
    deadline.repeatable = state
    lose(shared)
    call = Call(NotReady("Triton is not there"))
    assert calls_of(shared, state=state).run("m", call, deadline) == "answer"
    assert deadline.repeats == 0


@pytest.mark.parametrize("reason", ["the client", "the model"])
@pytest.mark.parametrize("failure", [Refused("not at ready state"), Interrupted("gone")])
def test_what_changes_later_answers_is_sent_once(
    shared: SharedGeneration, deadline: Invocation, reason: str, failure: NotReady
) -> None:
    deadline.repeatable = reason != "the client"
    call = Call(failure)
    with pytest.raises(Unavailable):  # final: the request's result is not made again either
        calls_of(shared, state=reason == "the model").run("m", call, deadline)
    assert call.sent == 1


@pytest.mark.parametrize(
    ("triton", "seconds", "change", "raised", "said"),
    [
        (STARTS_AGAIN, 5.0, {"at": 0.1}, DeadlinePassed, "Triton is not there"),
        (STARTS_AGAIN, 0.1, {}, Unavailable, "Triton is not there"),
        (STARTS_AGAIN, 5.0, {"is_disconnected": lambda: True}, CallerGone, ""),
        (STOPPED, 5.0, {}, Unavailable, "stopping"),
    ],
    ids=["with the request", "after the longest time", "when the caller hangs up", "when the box stops"],
)
def test_a_wait_ends_with_the_request_and_says_for_what_it_was(
    shared: SharedGeneration,
    deadline: Invocation,
    triton: Any,
    seconds: float,
    change: dict[str, Any],
    raised: type[Exception],
    said: str,
) -> None:
    shared.triton = triton
    for name, value in change.items():
        setattr(deadline, name, time.monotonic() + value if name == "at" else value)
    with pytest.raises(raised) as caught:
        calls_of(shared, seconds).run("m", Call(NotReady("Triton is not there")), deadline)
    assert said in str(caught.value)


def test_without_an_invocation_nothing_waits(shared: SharedGeneration) -> None:
    call = Call(NotReady("Triton is not there"))
    with pytest.raises(NotReady):
        calls_of(shared).run("m", call, None)
    assert call.sent == 1


def test_a_model_whose_processes_keep_dying_is_refused_at_once(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    shared.refuse("m", UNSTABLE)
    with pytest.raises(Unavailable):
        calls_of(shared).run("m", call := Call(), deadline)
    assert call.sent == 0


@pytest.mark.parametrize(
    ("happen", "sent"), [(crash, 2), (end_triton, MAX_TRITON_CRASHES)], ids=["a process", "Triton"]
)
def test_a_call_under_which_a_process_keeps_dying_ends(
    shared: SharedGeneration, deadline: Invocation, happen: Callable[[SharedGeneration], None], sent: int
) -> None:
    call = times(5, happen, shared)
    with pytest.raises(ModelCrashed):
        calls_of(shared).run("m", call, deadline)
    assert call.sent == sent


def test_a_process_that_was_stopped_was_not_crashed_by_its_calls(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    assert calls_of(shared).run("m", times(4, stall, shared), deadline) == "answer"


def test_a_batch_under_which_a_process_crashes_is_sent_once_and_its_records_alone(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    deadline.is_batch = True
    batch = times(5, crash, shared)
    with pytest.raises(ModelCrashed):
        calls_of(shared).run("m", batch, deadline)
    assert (batch.sent, deadline.suspicion) == (1, ("m", 1, 0))

    deadline.is_batch = False
    assert calls_of(shared).run("m", record := Call(), deadline) == "answer"
    assert record.alone == ["m"]
    # The record under which a process crashes again ends.
    with pytest.raises(ModelCrashed):
        calls_of(shared).run("m", batch, deadline)
    assert batch.sent == 2


def test_a_record_of_a_batch_does_not_suspect_another_model(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    deadline.suspicion = Suspicion("m", 1, 0)
    assert calls_of(shared).run("other", call := Call(), deadline) == "answer"
    assert call.alone == [None]


def test_suspected_calls_are_sent_one_at_a_time_and_before_new_ones(shared: SharedGeneration) -> None:
    running, most, order = 0, 0, list[str]()
    lock, began = threading.Lock(), threading.Barrier(4)

    def run(name: str, suspected: bool) -> None:
        nonlocal running, most
        sent = 0

        def send(_: Ticket) -> None:
            nonlocal running, most, sent
            sent += 1
            if suspected and sent == 1:
                if began.wait(5) == 0:
                    crash(shared)
                while not shared.crashed("m", 0):
                    time.sleep(0.001)
                raise Interrupted("the process is gone")
            with lock:
                running, most = running + 1, max(most, running + 1)
            time.sleep(0.05)
            with lock:
                running -= 1
                order.append(name)

        calls_of(shared).run("m", send, Invocation(time.monotonic() + 10))

    with ThreadPoolExecutor(5) as threads:
        suspects = [threads.submit(run, "suspect", True) for _ in range(4)]
        while not shared.is_reserved("m"):
            time.sleep(0.001)
        threads.submit(run, "new", False).result()
        assert [suspect.result() for suspect in suspects] == [None] * 4
    assert most == 1
    assert order == ["suspect"] * 4 + ["new"]
    time.sleep(RESERVATION_S)
    assert not shared.is_reserved("m")


def test_all_waits_of_a_request_share_its_time(shared: SharedGeneration, deadline: Invocation) -> None:
    call = Call(*[Refused("not at ready state")] * 1000)
    calls = calls_of(shared, 0.3)
    with pytest.raises(Unavailable):
        calls.run("m", call, deadline)
    sent = call.sent
    assert 1 < sent < 100
    # The same request calls another model, which has no time left.
    with pytest.raises(Unavailable):
        calls.run("other", call, deadline)
    assert call.sent - sent <= 2


def test_waits_side_by_side_count_once(deadline: Invocation) -> None:
    patience = Patience.of(deadline)
    assert Patience.of(deadline) is patience
    with patience.waiting(), patience.waiting():
        time.sleep(0.05)
    spent = patience.spent()
    assert spent >= 0.05
    time.sleep(0.05)
    assert patience.spent() == spent


def test_a_result_in_doubt_is_made_again_unless_its_calls_or_its_session_forbid_it(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    calls = calls_of(shared)
    assert not calls.may_make_again(deadline), "no answer of a Python model is in it"
    deadline.tickets.add(calls.guard.admit("m"))
    assert calls.may_make_again(deadline)
    assert not calls_of(shared, state=True).may_make_again(deadline)
    assert not calls_of(shared, seconds=0.0).may_make_again(deadline)
    deadline.session = object()
    assert not calls.may_make_again(deadline)
    deadline.session, deadline.repeatable = None, False
    assert not calls.may_make_again(deadline)
