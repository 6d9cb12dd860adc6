"""A call waits for what is replaced and is sent once more; what it waits for is in a real shared file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
from sm.model_processes.generations import (
    SERVES,
    STARTS_AGAIN,
    STOPPED,
    UNSTABLE,
    SharedGeneration,
    now,
)
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


def crash(shared: SharedGeneration, model: str) -> None:
    """What the supervisor and the control plane do when a model's process dies."""
    shared.take_out(model, now(), crashed=True)
    shared.admit(model, shared.out_since(model))


class Call:
    """A call of the model ``m`` that fails so often in a way, and then succeeds."""

    def __init__(self, *failures: Callable[[], None] | TriremeError) -> None:
        self.failures, self.sent = list(failures), 0

    def __call__(self, ticket: Ticket) -> str:
        self.sent += 1
        if not self.failures:
            return "answer"
        failure = self.failures.pop(0)
        if isinstance(failure, TriremeError):
            raise failure
        failure()
        raise Interrupted("the process is gone")


def test_a_call_whose_process_died_is_sent_once_more(shared: SharedGeneration, deadline: Invocation) -> None:
    def lose() -> None:
        shared.take_out("m", now())
        shared.refuse("m")
        threading.Timer(0.2, lambda: shared.admit("m", shared.out_since("m"))).start()

    call = Call(lose)
    assert calls_of(shared).run("m", call, deadline) == "answer"
    assert (call.sent, deadline.repeats) == (2, 1)
    assert "wait" in deadline.stages


def test_a_call_that_was_not_sent_yet_is_not_counted_as_repeated(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    shared.take_out("m", now())
    shared.refuse("m")
    threading.Timer(0.1, lambda: shared.admit("m", shared.out_since("m"))).start()
    # A model with state too: nothing has happened yet.
    assert calls_of(shared, state=True).run("m", Call(), deadline) == "answer"
    assert deadline.repeats == 0


@pytest.mark.parametrize("state", [True, False], ids=["model with state", "client that may not be repeated"])
def test_what_changes_later_answers_is_sent_once(
    shared: SharedGeneration, deadline: Invocation, state: bool
) -> None:
    deadline.repeatable = state
    call = Call(Interrupted("the process is gone"))
    with pytest.raises(NotReady, match="the process is gone"):
        calls_of(shared, state=state).run("m", call, deadline)
    assert call.sent == 1


def test_a_wait_ends_with_the_request_and_says_for_what_it_was(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    shared.triton = STARTS_AGAIN
    deadline.at = time.monotonic() + 0.1
    with pytest.raises(DeadlinePassed, match="ended during a wait: Triton is not there"):
        calls_of(shared).run("m", Call(NotReady("Triton is not there")), deadline)


def test_a_wait_ends_after_the_longest_time(shared: SharedGeneration, deadline: Invocation) -> None:
    shared.triton = STARTS_AGAIN
    with pytest.raises(Unavailable, match=r"Triton is not there; this has lasted for more than 0\.1 s"):
        calls_of(shared, 0.1).run("m", Call(NotReady("Triton is not there")), deadline)


def test_a_wait_ends_when_the_caller_hangs_up(shared: SharedGeneration, deadline: Invocation) -> None:
    deadline.is_disconnected = lambda: True
    with pytest.raises(CallerGone):
        calls_of(shared).run("m", Call(NotReady("Triton is not there")), deadline)


def test_a_wait_ends_when_the_box_stops(shared: SharedGeneration, deadline: Invocation) -> None:
    shared.triton = STOPPED
    with pytest.raises(Unavailable, match="the box is stopping"):
        calls_of(shared).run("m", Call(NotReady("Triton is not there")), deadline)


def test_without_an_invocation_nothing_waits(shared: SharedGeneration) -> None:
    call = Call(NotReady("Triton is not there"))
    with pytest.raises(NotReady):
        calls_of(shared).run("m", call, None)
    assert call.sent == 1


def test_a_model_whose_processes_keep_dying_is_refused_at_once(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    shared.refuse("m", UNSTABLE)
    with pytest.raises(Unavailable, match="keep dying"):
        calls_of(shared).run("m", Call(), deadline)


def test_a_call_under_which_a_process_crashes_twice_ends(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    call = Call(*[lambda: crash(shared, "m")] * 5)
    with pytest.raises(ModelCrashed, match="'m' died twice"):
        calls_of(shared).run("m", call, deadline)
    assert call.sent == 2


def test_a_batch_under_which_a_process_crashes_is_sent_once(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    """Its records are sent alone, and the one under which a process crashes again ends."""
    deadline.is_batch = True
    call = Call(*[lambda: crash(shared, "m")] * 5)
    with pytest.raises(ModelCrashed):
        calls_of(shared).run("m", call, deadline)
    assert (call.sent, deadline.suspicion) == (1, ("m", 1, 0))

    deadline.is_batch = False
    assert calls_of(shared).run("m", Call(), deadline) == "answer"
    alone: list[str | None] = []

    def send(ticket: Ticket) -> str:
        alone.append(ticket.alone)
        return "answer"

    assert calls_of(shared).run("m", send, deadline) == "answer"
    assert alone == ["m"]
    with pytest.raises(ModelCrashed, match="'m' died twice"):
        calls_of(shared).run("m", call, deadline)
    assert call.sent == 2


def test_a_record_of_a_batch_does_not_suspect_another_model(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    deadline.suspicion = Suspicion("m", 1, 0)
    alone: list[str | None] = []

    def send(ticket: Ticket) -> str:
        alone.append(ticket.alone)
        return "answer"

    assert calls_of(shared).run("other", send, deadline) == "answer"
    assert alone == [None]


def test_a_process_that_was_stopped_was_not_crashed_by_its_calls(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    def stall() -> None:
        shared.take_out("m", now())
        shared.admit("m", shared.out_since("m"))

    assert calls_of(shared).run("m", Call(*[stall] * 4), deadline) == "answer"


def test_a_call_under_which_triton_keeps_ending_ends_before_the_box_gives_up(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    def end_triton() -> None:
        shared.triton = STARTS_AGAIN

        def start() -> None:
            shared.admit_all()
            shared.triton = SERVES

        threading.Timer(0.05, start).start()

    call = Call(*[end_triton] * 5)
    with pytest.raises(ModelCrashed, match="Triton ended 3 times"):
        calls_of(shared).run("m", call, deadline)
    assert call.sent == MAX_TRITON_CRASHES


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
                    crash(shared, "m")
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
    """Triton refuses the call for ever; each refusal begins another wait."""
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


@pytest.mark.parametrize("reason", ["the client", "the model"])
@pytest.mark.parametrize("failure", [Refused("not at ready state"), Interrupted("gone")])
def test_what_triton_has_answered_is_not_sent_again_if_it_may_not_repeat(
    shared: SharedGeneration, deadline: Invocation, reason: str, failure: NotReady
) -> None:
    deadline.repeatable = reason != "the client"
    call = Call(failure)
    with pytest.raises(Unavailable):  # final: the request's result is not made again either
        calls_of(shared, state=reason == "the model").run("m", call, deadline)
    assert call.sent == 1


def test_what_was_not_sent_yet_waits_also_if_it_may_not_repeat(
    shared: SharedGeneration, deadline: Invocation
) -> None:
    deadline.repeatable = False
    call = Call(NotReady("Triton is not there"))
    assert calls_of(shared).run("m", call, deadline) == "answer"


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
