"""The dashboard's history shows the current state of the box between two points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.control import state as box_state
from sm.control.history import Recorder
from sm.control.state import all_ready
from sm.run_state import Box
from tests.support.nginx_front import make_box

READY = {"ready": True, "reason": "", "processes": {}}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    box = make_box(tmp_path)
    box.metrics_folder.mkdir(exist_ok=True)
    (box.run / "supervisor.pid").write_text("1")
    monkeypatch.setattr(box_state, "read_index", lambda _: [])
    monkeypatch.setattr(box_state, "triton_metrics", lambda _: b"")
    return box


def read_history(history: Recorder) -> dict[str, Any]:
    return dict(json.loads(history.read(0.0)))


def publish(box: Box, **changes: object) -> None:
    box.state_file.write_text(json.dumps({**READY, **changes}))


def test_the_state_is_the_current_one_and_not_that_of_the_last_point(box: Box) -> None:
    history = Recorder(box)
    publish(box, ready=False, reason="the router is loading its clients")
    history.record_point()
    assert read_history(history)["box"]["ready"] is False
    processes = {"data": {"pid": None, "state": "ready", "restarts": 0}}
    publish(box, processes=processes)
    dashboard = read_history(history)
    assert (dashboard["box"]["ready"], dashboard["box"]["reason"]) == (True, "")
    assert [row["state"] for row in dashboard["box"]["processes"] if row["name"] == "data"] == ["ready"]
    assert len(dashboard["events"]) == 1
    assert dashboard["points"] == []


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
def test_a_client_is_ready_if_all_models_that_it_needs_are(
    states: dict[str, str], models: list[str], ready: bool
) -> None:
    entries = [{"name": name, "state": state} for name, state in states.items()]
    assert all_ready(entries, models) is ready


#: Of Triton 2.51 on an NVIDIA H200 while it served, 26 November 2026.
GPU_SERIES = b"""# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-be1d17cc"} 0.25
nv_gpu_memory_total_bytes{gpu_uuid="GPU-be1d17cc"} 150754820096
nv_gpu_memory_used_bytes{gpu_uuid="GPU-be1d17cc"} 1457520640
nv_gpu_power_usage{gpu_uuid="GPU-be1d17cc"} 119.78
nv_cpu_utilization 0.5
"""
MEMORY = {"memory_used": 1457520640, "memory_total": 150754820096}
GPU = {"uuid": "GPU-be1d17cc", "utilization": 0.25, **MEMORY, "power": 119.78}


@pytest.mark.parametrize(
    ("series", "gpus"), [(GPU_SERIES, [GPU]), (b"nv_cpu_utilization 0.5\n", []), (b"", [])]
)
def test_the_dashboard_has_each_gpu_of_triton_and_leaves_out_a_file_without_a_size(
    box: Box, monkeypatch: pytest.MonkeyPatch, series: bytes, gpus: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(box_state, "triton_metrics", lambda _: series)
    (box.metrics_folder / "histogram_1.db").touch()  # of a worker, and it has no size yet
    publish(box)
    history = Recorder(box)
    history.record_point()
    found = read_history(history)["box"]
    assert (found["gpus"], found["last_minute"]["all"]["answers"]) == (gpus, {})
