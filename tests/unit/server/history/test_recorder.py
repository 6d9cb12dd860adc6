"""What a reader of the dashboard's numbers sees between two points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.router.routes.control_routes import all_ready
from sm.run_state import Box
from sm.server.history import box_processes, served_models
from sm.server.history.recorder import Recorder
from tests.support.nginx_front import make_box

READY = {"ready": True, "reason": "", "processes": {}}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    box = make_box(tmp_path)
    box.metrics_folder.mkdir(exist_ok=True)
    (box.run / "supervisor.pid").write_text("1")
    monkeypatch.setattr(served_models, "read_index", lambda _: [])
    return box


def read(history: Recorder) -> dict[str, Any]:
    return dict(json.loads(history.read(0.0)))


def publish(box: Box, **changes: object) -> None:
    box.state_file.write_text(json.dumps({**READY, **changes}))


def test_a_reader_sees_the_state_of_now_and_not_that_of_the_last_point(box: Box) -> None:
    history = Recorder(box)
    publish(box, ready=False, reason="the router is loading its clients")
    history.record_point()
    assert read(history)["box"]["ready"] is False
    data = {"data": {"pid": None, "state": "ready", "restarts": 0}}
    publish(box, processes=data)
    shown = read(history)
    assert (shown["box"]["ready"], shown["box"]["reason"]) == (True, "")
    assert [row["state"] for row in shown["box"]["processes"] if row["name"] == "data"] == ["ready"]
    assert [event["text"] for event in shown["events"]] == ["the box is ready"]
    assert shown["points"] == []


def test_the_processes_are_measured_for_a_reader_only_after_a_change(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = Recorder(box)
    publish(box)
    history.record_point()
    monkeypatch.setattr(box_processes, "find", lambda *_: pytest.fail("measured again"))
    assert read(history)["box"]["ready"] is True


@pytest.mark.parametrize(
    ("states", "models", "ready"),
    [
        ({}, [], True),
        ({}, ["a"], False),
        ({"a": "READY"}, ["a"], True),
        ({"a": "READY"}, ["a", "b"], False),
        ({"a": "READY", "b": "UNAVAILABLE"}, ["a", "b"], False),
    ],
)
def test_a_client_is_ready_if_each_model_that_it_needs_is(
    states: dict[str, str], models: list[str], ready: bool
) -> None:
    entries = [{"name": name, "state": state} for name, state in states.items()]
    assert all_ready(entries, models) is ready
