"""The dashboard's history: the current state of the box, and each change between two polls once, by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sm.run_state import Box
from tests.support.nginx_front import make_box
from trireme_extensions.observe import served_models
from trireme_extensions.observe.history import HistoryRecorder, ProcessGroup, StateChanges

READY = {"ready": True, "reason": "", "processes": {}}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    box = make_box(tmp_path)
    box.metrics_folder.mkdir(exist_ok=True)
    (box.run / "supervisor.pid").write_text("1")
    monkeypatch.setattr(served_models, "read_index", lambda _: [])
    monkeypatch.setattr(served_models, "triton_metrics", lambda _: b"")
    return box


def read_history(history: HistoryRecorder) -> dict[str, Any]:
    return dict(json.loads(history.read(0.0)))


def publish(box: Box, **changes: object) -> None:
    box.state_file.write_text(json.dumps({**READY, **changes}))


def test_the_state_is_the_current_one_and_not_that_of_the_last_point(box: Box) -> None:
    history = HistoryRecorder(box)
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
    monkeypatch.setattr(served_models, "triton_metrics", lambda _: series)
    (box.metrics_folder / "histogram_1.db").touch()  # of a worker, and it has no size yet
    publish(box)
    history = HistoryRecorder(box)
    history.record_point()
    found = read_history(history)["box"]
    assert (found["gpus"], found["last_minute"]["all"]["answers"]) == (gpus, {})


def group(name: str, pid: int | None = 1, workers: tuple[int, ...] = (), **counts: int) -> ProcessGroup:
    found = ProcessGroup(name, "ready", pid, counts.get("restarts", 0), children=frozenset(workers))
    found.processes, found.stopped = 1 + len(workers), counts.get("stopped", 0)
    return found


def assert_named(events: Iterable[str], *names: str) -> None:
    """There is one event for each name, in this order."""
    found = list(events)
    assert len(found) == len(names)
    assert all(name in event for name, event in zip(names, found, strict=True)), found


@pytest.mark.parametrize(
    ("states", "named", "restarts"),
    [
        # The supervisor does not count a process that it ended itself.
        ([group("triton", 5), group("triton", None), group("triton", 6)], ["", "", "triton"], 1),
        ([group("triton", 5), group("triton", 6, restarts=4)], ["", "triton"], 4),
        ([group("data", 1, (2, 3)), group("data", 1, (2, 4), restarts=1)], ["", "1 worker of data"], 2),
        ([group("triton", 1, (2, 3)), group("triton", 1, (4,))], ["", ""], 0),
        (
            [group("data", 1, (2, 3), stopped=stopped) for stopped in (0, 1, 1, 0)],
            *(["", "1 of 3 processes of data", "", "data"], 0),
        ),
    ],
    ids=["another pid", "counted exits", "a worker that ended", "processes of models", "stopped and back"],
)
def test_a_change_of_a_process_is_reported_once(
    states: list[ProcessGroup], named: list[str], restarts: int
) -> None:
    changes = StateChanges()
    for state, name in zip(states, named, strict=True):
        assert_named(changes.compare_processes([state]), *filter(None, [name]))
    assert changes.restarts(states[-1]) == restarts


def row(name: str, state: str = "ready", revision: str = "") -> dict[str, str]:
    return {"name": name, "state": state, "revision": revision}


def test_new_changed_replaced_and_unloaded_models_are_reported() -> None:
    changes = StateChanges()
    polls: list[tuple[list[dict[str, Any]], tuple[str, ...]]] = [
        ([row("a"), row("b"), row("d", revision="old")], ()),
        ([row("a", "not ready"), row("c"), row("d", revision="old")], ("a is not ready", "b ", "c is ready")),
        (
            [row("a", "not ready"), row("c"), *(row("d", revision=each) for each in ("old", "new"))],
            ("d new",),
        ),
        ([row("a", "not ready"), row("c"), row("d", revision="new")], ("d old",)),
    ]
    for rows, named in polls:
        assert_named(changes.compare_models(rows), *named)


def test_the_report_says_why_the_box_is_not_ready() -> None:
    changes = StateChanges()
    assert_named(changes.compare_box(True, ""))
    assert_named(changes.compare_box(False, "triton is restarting"), "triton is restarting")
    assert_named(changes.compare_box(True, ""), "ready")
