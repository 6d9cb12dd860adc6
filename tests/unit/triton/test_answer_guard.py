"""Answers that may be another caller's are refused, with the numbers of a real shared file."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sm.errors import NotReady
from sm.generation import MAX_HEARTBEAT_AGE_S, SharedGeneration
from sm.metrics import MISMATCHED_ANSWERS
from sm.triton import answer_guard
from sm.triton.answer_guard import AnswerGuard
from sm.triton.call_failures import stalled_instance


@pytest.fixture
def supervisor(tmp_path: Path) -> SharedGeneration:
    created = SharedGeneration.create(tmp_path / "generation")
    created.advance()
    created.beat()
    return created


@pytest.fixture
def guard(supervisor: SharedGeneration) -> AnswerGuard:
    return AnswerGuard(SharedGeneration(supervisor.path))


def test_an_answer_passes_while_nothing_is_wrong(guard: AnswerGuard) -> None:
    guard.confirm(guard.admit())
    guard.confirm_delivery([1])


def test_a_stall_that_one_worker_sees_keeps_back_the_answers_of_all(
    guard: AnswerGuard, supervisor: SharedGeneration
) -> None:
    begun = guard.admit()
    AnswerGuard(SharedGeneration(supervisor.path)).report_stall(1, "resnet_0_0")
    for refused in (lambda: guard.confirm(begun), lambda: guard.confirm_delivery([begun]), guard.admit):
        with pytest.raises(NotReady, match="mixed up"):
            refused()


def test_after_triton_s_restart_new_requests_pass_and_old_ones_do_not(
    guard: AnswerGuard, supervisor: SharedGeneration
) -> None:
    before = guard.admit()
    guard.report_stall(before, "")
    supervisor.advance()
    guard.confirm(guard.admit())
    with pytest.raises(NotReady):
        guard.confirm(before)


def test_a_process_that_is_dead_cannot_answer_late(supervisor: SharedGeneration) -> None:
    guard = AnswerGuard(supervisor, is_running=lambda instance: instance != "dead_0_0")
    guard.report_stall(1, "dead_0_0")
    guard.confirm(1)
    guard.report_stall(1, "alive_0_0")
    with pytest.raises(NotReady):
        guard.confirm(1)


def test_an_answer_after_a_standstill_waits_for_the_supervisor_who_puts_it_in_doubt(
    guard: AnswerGuard, supervisor: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = guard.admit()
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)

    def wake() -> None:
        supervisor.put_in_doubt(begun)
        supervisor.beat()

    threading.Timer(0.1, wake).start()
    with pytest.raises(NotReady, match="mixed up"):
        guard.confirm(begun)


def test_an_answer_that_waited_passes_if_nothing_was_wrong(
    guard: AnswerGuard, supervisor: SharedGeneration
) -> None:
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    threading.Timer(0.1, supervisor.beat).start()
    guard.confirm(guard.admit())


def test_without_a_heartbeat_only_answers_that_say_whose_they_are_pass(
    guard: AnswerGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_guard, "HEARTBEAT_TIMEOUT_S", 0.05)
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    guard.confirm(1, identified=True)
    with pytest.raises(NotReady, match="supervisor"):
        guard.confirm(1)


def test_models_without_processes_of_their_own_need_no_heartbeat(
    guard: AnswerGuard, supervisor: SharedGeneration
) -> None:
    supervisor.watch(False)
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    guard.confirm(1)


def test_a_mismatch_is_counted_and_puts_all_answers_in_doubt(guard: AnswerGuard) -> None:
    before = MISMATCHED_ANSWERS.value
    assert isinstance(guard.report_mismatch(1, "resnet"), NotReady)
    assert MISMATCHED_ANSWERS.value == before + 1
    with pytest.raises(NotReady):
        guard.confirm(1)


def test_where_no_supervisor_watches_everything_passes() -> None:
    guard = AnswerGuard(None)
    guard.confirm(guard.admit())
    guard.report_stall(0, "")
    guard.confirm(0)


@pytest.mark.parametrize(
    ("text", "instance"),
    [
        ("Stub process 'resnet_0_0' is not healthy.", "resnet_0_0"),
        ("[request id: 7] in ensemble 'all', Stub process 'resnet_0_1' is not healthy.", "resnet_0_1"),
        ("Stub process is not healthy.", ""),
        ("Failed to obtain the health mutex.", ""),
        # A caller's own words are no reason to start Triton again.
        ("Failed to process the request(s): bad word 'Stub process 'resnet_0_0' is not healthy.'", None),
        ("[request id: x] Stub process 'a_0_0' is not healthy.] unexpected inference input 'y'", None),
        ("Request for unknown model: 'Stub process 'a_0_0' is not healthy.' is not found", None),
        ("", None),
    ],
)
def test_only_triton_s_own_message_tells_of_a_stall(text: str, instance: str | None) -> None:
    assert stalled_instance(text) == instance
