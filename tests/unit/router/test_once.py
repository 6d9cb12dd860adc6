"""A request that may run only once is refused by the worker that gets it after another one died."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sm.client.readiness import Readiness
from sm.errors import Interrupted
from sm.invocation import Invocation
from sm.model_processes.answer_guard import AnswerGuard
from sm.models.table import models_of
from sm.router.app import flow_of
from sm.router.once import OnceNotes
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.calls import Calls

#: Above the kernel's largest process id.
NO_PROCESS = 2**22 + 1


def make_request(identity: str = "r", arrival: str = "1700000000.123") -> Invocation:
    made = Invocation(time.monotonic() + 10, request_id=identity)
    made.arrival = arrival
    return made


@pytest.fixture
def notes(tmp_path: Path) -> OnceNotes:
    return OnceNotes(tmp_path / "once")


def test_the_request_of_a_worker_that_died_is_refused(notes: OnceNotes, tmp_path: Path) -> None:
    notes.begin(make_request())
    (note,) = (tmp_path / "once").iterdir()
    note.write_text(str(NO_PROCESS))
    with pytest.raises(Interrupted):
        notes.begin(make_request())
    notes.begin(make_request("another"))
    notes.begin(make_request(arrival="1700000000.124"))


def test_the_workers_of_a_box_share_their_notes(tmp_path: Path) -> None:
    box, models = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0), models_of({})
    readiness = Readiness(models.all_clients, tmp_path / "unready")
    one, another = (
        flow_of(Settings(), box, models, Calls(AnswerGuard(None)), readiness, ()).once for _ in range(2)
    )
    assert one and another
    one.begin(make_request())
    (note,) = (tmp_path / "once").iterdir()
    note.write_text(str(NO_PROCESS))
    with pytest.raises(Interrupted):
        another.begin(make_request())


def test_two_requests_of_one_moment_and_id_both_run(notes: OnceNotes) -> None:
    first, second = make_request(), make_request()
    notes.begin(first)
    notes.begin(second)
    OnceNotes.end(second)
    OnceNotes.end(first)
    notes.begin(make_request())


def test_an_ended_request_leaves_no_note(notes: OnceNotes, tmp_path: Path) -> None:
    first = make_request()
    notes.begin(first)
    notes.begin(first)  # its second record
    assert [path.read_text() for path in (tmp_path / "once").iterdir()] == [str(os.getpid())]
    OnceNotes.end(first)
    assert not list((tmp_path / "once").iterdir())


def test_without_nginx_nothing_is_noted(notes: OnceNotes, tmp_path: Path) -> None:
    notes.begin(make_request(arrival=""))
    assert not (tmp_path / "once").exists()
