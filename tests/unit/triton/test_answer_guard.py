"""The answer guard refuses answers that may belong to another request; the generation is in a real shared file."""

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
def supervisor_generation(tmp_path: Path) -> SharedGeneration:
    generation = SharedGeneration.create(tmp_path / "generation")
    generation.advance()
    generation.beat()
    return generation


@pytest.fixture
def guard(supervisor_generation: SharedGeneration) -> AnswerGuard:
    return AnswerGuard(SharedGeneration(supervisor_generation.path))


def test_an_answer_is_delivered_while_nothing_is_wrong(guard: AnswerGuard) -> None:
    guard.confirm(guard.admit())
    guard.confirm_delivery([1])


def test_a_stall_reported_by_one_worker_puts_the_answers_of_all_in_doubt(
    guard: AnswerGuard, supervisor_generation: SharedGeneration
) -> None:
    generation = guard.admit()
    AnswerGuard(SharedGeneration(supervisor_generation.path)).report_stall(1, "resnet_0_0")
    for operation in (
        lambda: guard.confirm(generation),
        lambda: guard.confirm_delivery([generation]),
        guard.admit,
    ):
        with pytest.raises(NotReady, match="mixed up"):
            operation()


def test_after_a_restart_of_triton_only_answers_to_new_requests_are_delivered(
    guard: AnswerGuard, supervisor_generation: SharedGeneration
) -> None:
    old_generation = guard.admit()
    guard.report_stall(old_generation, "")
    supervisor_generation.advance()
    guard.confirm(guard.admit())
    with pytest.raises(NotReady):
        guard.confirm(old_generation)


def test_a_stall_of_a_dead_instance_does_not_matter(supervisor_generation: SharedGeneration) -> None:
    guard = AnswerGuard(supervisor_generation, is_running=lambda instance: instance != "dead_0_0")
    guard.report_stall(1, "dead_0_0")
    guard.confirm(1)
    guard.report_stall(1, "alive_0_0")
    with pytest.raises(NotReady):
        guard.confirm(1)


def test_an_answer_after_a_standstill_is_refused_once_the_supervisor_puts_it_in_doubt(
    guard: AnswerGuard, supervisor_generation: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = guard.admit()
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)

    def resume_supervisor() -> None:
        supervisor_generation.put_in_doubt(generation)
        supervisor_generation.beat()

    threading.Timer(0.1, resume_supervisor).start()
    with pytest.raises(NotReady, match="mixed up"):
        guard.confirm(generation)


def test_an_answer_after_a_standstill_is_delivered_once_the_supervisor_confirms_it(
    guard: AnswerGuard, supervisor_generation: SharedGeneration
) -> None:
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    threading.Timer(0.1, supervisor_generation.beat).start()
    guard.confirm(guard.admit())


def test_without_a_heartbeat_only_identified_answers_are_delivered(
    guard: AnswerGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_guard, "HEARTBEAT_TIMEOUT_S", 0.05)
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    guard.confirm(1, identified=True)
    with pytest.raises(NotReady, match="supervisor"):
        guard.confirm(1)


def test_without_stub_processes_no_heartbeat_is_needed(
    guard: AnswerGuard, supervisor_generation: SharedGeneration
) -> None:
    supervisor_generation.watch(False)
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    guard.confirm(1)


def test_a_mismatch_is_counted_and_puts_all_answers_in_doubt(guard: AnswerGuard) -> None:
    count_before = MISMATCHED_ANSWERS.value
    assert isinstance(guard.report_mismatch(1, "resnet"), NotReady)
    assert MISMATCHED_ANSWERS.value == count_before + 1
    with pytest.raises(NotReady):
        guard.confirm(1)


def test_without_a_supervisor_every_answer_is_delivered() -> None:
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
        # Text that a caller sent must not restart Triton.
        ("Failed to process the request(s): bad word 'Stub process 'resnet_0_0' is not healthy.'", None),
        ("[request id: x] Stub process 'a_0_0' is not healthy.] unexpected inference input 'y'", None),
        ("Request for unknown model: 'Stub process 'a_0_0' is not healthy.' is not found", None),
        ("", None),
    ],
)
def test_only_tritons_own_message_counts_as_a_stall(text: str, instance: str | None) -> None:
    assert stalled_instance(text) == instance
