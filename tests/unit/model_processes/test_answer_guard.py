"""The answer guard refuses answers that may belong to another request; the generations are in a real shared file."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from sm.errors import CallerGone, NotReady
from sm.invocation import Invocation
from sm.metrics import MISMATCHED_ANSWERS
from sm.model_processes import answer_guard, hang_watch
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import MAX_HEARTBEAT_AGE_S, REPORTED, SETTLING_S, SharedGeneration, now
from sm.model_processes.hang_watch import HangWatch
from sm.model_processes.python_models import PythonModels, Reach
from sm.model_processes.reports import EndedGeneration
from sm.run_state import Box
from tests.support.boxes import wait_until
from tests.support.series import value


@pytest.fixture
def shared(tmp_path: Path) -> SharedGeneration:
    generation = SharedGeneration.create(tmp_path / "generation")
    generation.watch(True)
    generation.beat()
    return generation


@pytest.fixture
def guard(shared: SharedGeneration) -> AnswerGuard:
    return AnswerGuard(SharedGeneration(shared.path))


def decide_as_supervisor(shared: SharedGeneration, report: EndedGeneration) -> bool:
    shared.decide(report.model, report.number, crashed=True)
    shared.refuse(report.model, 0)
    return True


def test_calls_wait_for_the_decision_about_a_report_and_a_late_one_is_of_no_later_load(
    guard: AnswerGuard,
) -> None:
    late = guard.admit("resnet")
    guard.report_stall(late, "resnet_0_0")
    assert not guard.shared.out_since("resnet")
    with pytest.raises(NotReady):
        guard.admit("resnet")
    decide_as_supervisor(guard.shared, EndedGeneration("resnet", 0, ""))
    assert guard.shared.out_since("resnet")
    guard.confirm(guard.admit("resnet"))
    guard.shared.admit("resnet", guard.shared.out_since("resnet"))
    ticket = guard.admit("resnet")
    guard.report_stall(late, "resnet_0_0")
    guard.confirm(ticket)
    assert not guard.shared.out_since("resnet")


def test_a_stall_reported_by_one_worker_puts_that_models_answers_in_doubt(guard: AnswerGuard) -> None:
    ticket, neighbour = guard.admit("resnet"), guard.admit("echo")
    reports: list[EndedGeneration] = []

    def send(report: EndedGeneration) -> bool:
        reports.append(report)
        threading.Timer(0.05, decide_as_supervisor, (guard.shared, report)).start()
        return True

    other = AnswerGuard(guard.shared, send=send)
    other.report_stall(other.admit("resnet"), "resnet_0_0")
    # It has waited for the decision, which says that the process had died by itself.
    assert guard.shared.crashed("resnet", 0)
    other.report_stall(ticket, "resnet_0_0")
    assert reports == [("resnet", 0, "resnet_0_0")]
    for operation in (guard.confirm, lambda ticket: guard.confirm_delivery([ticket])):
        with pytest.raises(NotReady, match="resnet"):
            operation(ticket)
        operation(neighbour)


def test_a_model_without_a_process_is_refused_until_it_is_back(guard: AnswerGuard) -> None:
    guard.shared.take_out("resnet", now())
    guard.shared.refuse("resnet")
    with pytest.raises(NotReady) as refusal:
        guard.admit("resnet")
    assert refusal.value.retry_after == 1
    guard.confirm(guard.admit("echo"))
    guard.shared.admit("resnet", guard.shared.out_since("resnet"))
    guard.confirm(guard.admit("resnet"))


def test_a_stall_in_an_ensemble_takes_out_the_step_that_triton_names(shared: SharedGeneration) -> None:
    models = ("first", "first_more", "second")
    guard = AnswerGuard(shared, lambda model: models)
    guard.report_stall(guard.admit("all"), "first_more_0_0")
    assert [model for model in models if shared.refusal(model) == REPORTED] == ["first_more"]
    # Without a name it may be any.
    decide_as_supervisor(shared, EndedGeneration("first_more", 0))
    guard.report_stall(guard.admit("all"), "")
    assert all(map(shared.refusal, models))


def test_after_a_standstill_an_answer_waits_for_what_triton_says(guard: AnswerGuard) -> None:
    ticket = guard.admit("resnet")
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)

    def resume_supervisor() -> None:
        guard.shared.resume()
        guard.shared.beat()

    # Another worker reads a moment later that Triton gave up on the process.
    threading.Timer(0.1, resume_supervisor).start()
    threading.Timer(0.1 + SETTLING_S / 2, guard.shared.report, ("resnet", 0)).start()
    with pytest.raises(NotReady):
        guard.confirm(ticket)


def test_after_a_standstill_answers_are_delivered_if_triton_gave_up_on_nothing(guard: AnswerGuard) -> None:
    ticket = guard.admit("resnet")
    guard.shared.resume()
    began = time.monotonic()
    guard.confirm(ticket)
    assert time.monotonic() - began > SETTLING_S / 2


def test_a_call_that_nobody_reads_after_a_standstill_takes_its_model_out(guard: AnswerGuard) -> None:
    ticket = guard.admit("resnet")
    guard.report_abandoned(ticket, "resnet", None)
    assert not guard.shared.refusal("resnet")
    guard.shared.resume()
    guard.report_abandoned(ticket, "resnet", None)
    assert guard.shared.refusal("resnet") == REPORTED


def test_without_a_heartbeat_only_identified_answers_count(
    guard: AnswerGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_guard, "HEARTBEAT_TIMEOUT_S", 0.05)
    ticket = guard.admit("resnet")
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    guard.confirm(ticket, identified=True)
    with pytest.raises(NotReady):
        guard.confirm(ticket)


def test_who_waits_for_a_heartbeat_or_after_a_standstill_may_leave(guard: AnswerGuard) -> None:
    ticket = guard.admit("resnet")
    gone = Invocation(time.monotonic() + 60, is_disconnected=lambda: True)
    guard.shared.resume()
    with pytest.raises(CallerGone):
        guard.confirm(ticket, invocation=gone)
    time.sleep(MAX_HEARTBEAT_AGE_S + 0.05)
    with pytest.raises(CallerGone):
        guard.confirm(ticket, invocation=gone)


def test_a_mismatch_is_counted_and_takes_the_model_out(guard: AnswerGuard) -> None:
    count_before = value(MISMATCHED_ANSWERS)
    ticket = guard.admit("resnet")
    assert isinstance(guard.report_mismatch(ticket, "resnet"), NotReady)
    assert value(MISMATCHED_ANSWERS) == count_before + 1
    assert guard.shared.refusal("resnet") == REPORTED
    assert not guard.shared.refusal("echo")


def test_without_a_supervisor_every_answer_is_delivered() -> None:
    guard = AnswerGuard(None)
    ticket = guard.admit("resnet")
    guard.report_stall(ticket, "")
    guard.report_abandoned(ticket, "resnet", None)
    guard.confirm(ticket)


def test_a_model_hangs_since_the_first_of_its_requests_began(
    tmp_path: Path, shared: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_timeout_s = 1000.0
    box = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0, model_timeout=model_timeout_s)
    report = Mock(return_value=True)
    monkeypatch.setattr(hang_watch, "read_pid", lambda *_: os.getpid())
    # It has ended nothing since.
    models = PythonModels(box)
    monkeypatch.setattr(models, "of", lambda _: Reach(("resnet",), ("resnet",), False, False))
    watch = HangWatch(box, shared, models, report, lambda _: 1.0)
    impatient, patient = Invocation(time.monotonic() + 60), Invocation(time.monotonic() - 1)
    impatient.began = time.monotonic() - 3
    patient.began = time.monotonic() - 2 * model_timeout_s
    ticket = AnswerGuard(shared).admit("resnet")
    watch.add(ticket, "resnet", impatient, streamed=False)
    watch.add(ticket, "resnet", patient, streamed=False)
    wait_until(lambda: report.called, description="the report")
    assert [call.args[:2] for call in report.call_args_list] == [("resnet", 0)]
