"""A call waits for what is replaced and is sent once more; what it waits for is in a real shared file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CallerGone, DeadlinePassed, Interrupted, ModelCrashed, NotReady, Refused, Unavailable
from sm.invocation import Invocation, Suspicion, Ticket
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SERVES, STARTS_AGAIN, STOPPED, UNSTABLE, SharedGeneration, now
from sm.triton.calls import Calls
from sm.triton.retries import RESERVATION_S
from tests.support.boxes import wait_until


class Setup:
    """The shared file, and a request with 10 s."""

    def __init__(self, folder: Path) -> None:
        self.shared = SharedGeneration.create(folder / "generation")
        self.deadline = Invocation(time.monotonic() + 10)
        self.request: Invocation | None = self.deadline

    def calls(self, seconds: float = 5.0, state: bool = False) -> Calls:
        return Calls(AnswerGuard(self.shared), lambda _: state, seconds, self.shared.path.parent)

    def run(self, call: Callable[[Ticket], str], model: str = "m", **options: Any) -> str:
        return self.calls(**options).run(model, call, self.request)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def stall(shared: SharedGeneration, crashed: bool = False) -> None:
    """What the supervisor and the control plane do when the model's process does not answer."""
    shared.take_out("m", now(), crashed=crashed)
    shared.admit("m", shared.out_since("m"))


def crash(shared: SharedGeneration) -> None:
    stall(shared, crashed=True)


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

    def __init__(self, *failures: Callable[[], None] | Exception) -> None:
        self.failures, self.sent, self.alone = list(failures), 0, list[str | None]()

    def __call__(self, ticket: Ticket) -> str:
        self.sent += 1
        self.alone.append(ticket.alone)
        if not self.failures:
            return "answer"
        failure = self.failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        failure()
        raise Interrupted("the process is gone")


def times(count: int, happen: Callable[[SharedGeneration], None], shared: SharedGeneration) -> Call:
    return Call(*[lambda: happen(shared)] * count)


def test_a_call_whose_process_died_is_sent_once_more(setup: Setup) -> None:
    call = times(1, lose, setup.shared)
    assert setup.run(call) == "answer"
    assert (call.sent, setup.deadline.repeats) == (2, 1)
    assert "wait" in setup.deadline.stages


@pytest.mark.parametrize("state", [True, False])
def test_what_was_not_sent_yet_waits_also_if_it_may_not_repeat(setup: Setup, state: bool) -> None:
    setup.deadline.repeatable = state
    lose(setup.shared)
    call = Call(NotReady("Triton is not there"))
    assert setup.run(call, state=state) == "answer"
    assert setup.deadline.repeats == 0


@pytest.mark.parametrize("reason", ["the client", "the model"])
@pytest.mark.parametrize("failure", [Refused("not at ready state"), Interrupted("gone")])
def test_what_changes_later_answers_is_sent_once(setup: Setup, reason: str, failure: NotReady) -> None:
    setup.deadline.repeatable = reason != "the client"
    call = Call(failure)
    with pytest.raises(Unavailable):  # final: the request's result is not made again either
        setup.run(call, state=reason == "the model")
    assert call.sent == 1


@pytest.mark.parametrize(
    ("triton", "seconds", "change", "raised"),
    [
        (STARTS_AGAIN, 5.0, {"at": 0.1}, DeadlinePassed),
        (STARTS_AGAIN, 0.1, {}, Unavailable),
        (STARTS_AGAIN, 5.0, {"is_disconnected": lambda: True}, CallerGone),
        (STOPPED, 5.0, {}, Unavailable),
    ],
    ids=["with the request", "after the longest time", "when the caller hangs up", "when the box stops"],
)
def test_a_wait_ends_with_the_request(
    setup: Setup, triton: Any, seconds: float, change: Any, raised: type[Exception]
) -> None:
    setup.shared.triton = triton
    for name, value in change.items():
        setattr(setup.deadline, name, time.monotonic() + value if name == "at" else value)
    with pytest.raises(raised):
        setup.run(Call(NotReady("Triton is not there")), seconds=seconds)


def test_without_an_invocation_nothing_waits(setup: Setup) -> None:
    setup.request = None
    with pytest.raises(NotReady):
        setup.run(call := Call(NotReady("Triton is not there")))
    assert call.sent == 1


def test_a_model_whose_processes_keep_dying_is_refused_at_once(setup: Setup) -> None:
    setup.shared.refuse("m", UNSTABLE)
    with pytest.raises(Unavailable):
        setup.run(call := Call())
    assert call.sent == 0


@pytest.mark.parametrize(("happen", "sent"), [(crash, 2), (end_triton, 3)], ids=["a process", "Triton"])
def test_a_call_under_which_a_process_keeps_dying_ends(setup: Setup, happen: Any, sent: int) -> None:
    call = times(5, happen, setup.shared)
    with pytest.raises(ModelCrashed):
        setup.run(call)
    assert call.sent == sent
    # One that was stopped was not crashed by its calls.
    assert setup.run(times(4, stall, setup.shared)) == "answer"


def test_a_batch_under_which_a_process_crashes_is_sent_once_and_its_records_alone(setup: Setup) -> None:
    setup.deadline.is_batch = True
    batch = times(5, crash, setup.shared)
    with pytest.raises(ModelCrashed):
        setup.run(batch)
    assert (batch.sent, setup.deadline.suspicion) == (1, ("m", 1, 0))

    setup.deadline.is_batch = False
    assert setup.run(record := Call()) == "answer"
    assert record.alone == ["m"]
    # The record under which a process crashes again ends.
    with pytest.raises(ModelCrashed):
        setup.run(batch)
    assert batch.sent == 2


def test_a_record_of_a_batch_does_not_suspect_another_model(setup: Setup) -> None:
    setup.deadline.suspicion = Suspicion("m", 1, 0)
    assert setup.run(call := Call(), "other") == "answer"
    assert call.alone == [None]


def test_suspected_calls_are_sent_one_at_a_time_and_before_new_ones(setup: Setup) -> None:
    order, alone, began = list[str](), threading.Lock(), threading.Barrier(4)

    def run(name: str) -> None:
        is_first = name == "suspect"

        def send(_: Ticket) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                if began.wait(5) == 0:
                    crash(setup.shared)
                wait_until(lambda: setup.shared.crashed("m", 0))
                raise Interrupted("the process is gone")
            assert alone.acquire(blocking=False)
            time.sleep(0.05)
            order.append(name)
            alone.release()

        setup.calls().run("m", send, Invocation(time.monotonic() + 10))

    with ThreadPoolExecutor(5) as threads:
        suspects = [threads.submit(run, "suspect") for _ in range(4)]
        wait_until(lambda: setup.shared.is_reserved("m"))
        threads.submit(run, "new").result()
        assert [suspect.result() for suspect in suspects] == [None] * 4
    assert order == ["suspect"] * 4 + ["new"]
    time.sleep(RESERVATION_S)
    assert not setup.shared.is_reserved("m")


def test_all_waits_of_a_request_share_its_time(setup: Setup) -> None:
    call = Call(*[Refused("not at ready state")] * 1000)
    calls = setup.calls(0.3)
    with pytest.raises(Unavailable):
        calls.run("m", call, setup.deadline)
    sent = call.sent
    assert 1 < sent < 100
    # The same request calls another model, which has no time left.
    with pytest.raises(Unavailable):
        calls.run("other", call, setup.deadline)
    assert call.sent - sent <= 2


def test_waits_side_by_side_count_once(setup: Setup) -> None:
    setup.shared.triton = STARTS_AGAIN
    began, calls = time.monotonic(), setup.calls(0.5)

    def run(delay: float) -> None:
        time.sleep(delay)
        with pytest.raises(Unavailable):
            calls.run("m", Call(NotReady("Triton is not there")), setup.deadline)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(run, (0.0, 0.0, 0.0, 0.1, 0.2, 0.3)))
    assert 0.5 < setup.deadline.spent_waiting <= time.monotonic() - began


def test_a_result_in_doubt_is_made_again_unless_its_calls_or_its_session_forbid_it(setup: Setup) -> None:
    calls, request = setup.calls(), setup.deadline
    assert not calls.may_make_again(request), "no answer of a Python model is in it"
    request.tickets.add(calls.guard.admit("m"))
    assert calls.may_make_again(request)
    assert not setup.calls(state=True).may_make_again(request)
    assert not setup.calls(seconds=0.0).may_make_again(request)
    request.session = object()
    assert not calls.may_make_again(request)
    request.session, request.repeatable = None, False
    assert not calls.may_make_again(request)
