"""The metrics of the whole box, from the files that its processes share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from sm.control.box_series import BoxSeries
from sm.run_state import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box("abc", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    box.save()
    return box


def box_registry(box: Box, ready: bool = True, shared_memory: Path = Path("/dev/shm")) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: ready, shared_memory))
    return registry


def count_worker_restarts(box: Box, value: float) -> None:
    key = mmap_key("trireme_restarts", "trireme_restarts_total", ["process"], ["worker"], "Help.")
    path = box.metrics_folder / "counter_7.db"
    file = MmapedDict(str(path))  # type: ignore[no-untyped-call]
    file.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    file.close()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("ready", [True, False])
def test_readiness_is_that_of_ping(box: Box, ready: bool) -> None:
    assert box_registry(box, ready).get_sample_value("trireme_ready") == float(ready)


def test_restarts_of_workers_and_other_processes_are_one_series(box: Box) -> None:
    processes = {"nginx": {"pid": None, "state": "restarting", "restarts": 3}}
    box.state_file.write_text(json.dumps({"processes": processes}))
    count_worker_restarts(box, 2)
    registry = box_registry(box)
    restarts = {
        name: registry.get_sample_value("trireme_restarts_total", {"process": name})
        for name in ("nginx", "worker")
    }
    assert restarts == {"nginx": 3.0, "worker": 2.0}
    assert len([family for family in registry.collect() if family.name == "trireme_restarts"]) == 1


def test_only_running_processes_have_a_memory_series(box: Box) -> None:
    processes = {name: {"pid": pid, "restarts": 0} for name, pid in (("data", os.getpid()), ("triton", None))}
    box.state_file.write_text(json.dumps({"processes": processes}))
    registry = box_registry(box)
    resident = registry.get_sample_value("trireme_process_resident_bytes", {"process": "data"})
    assert resident is not None
    assert resident > 2**20
    assert registry.get_sample_value("trireme_process_resident_bytes", {"process": "triton"}) is None


@pytest.mark.parametrize("state", ["", "{half of", "{}"], ids=["empty", "cut off", "no processes"])
def test_without_a_readable_state_file_the_other_series_remain(box: Box, state: str) -> None:
    box.state_file.write_text(state)
    registry = box_registry(box, ready=False)
    assert registry.get_sample_value("trireme_ready") == 0
    assert registry.get_sample_value("trireme_dev_shm_size_bytes") is not None


def test_without_a_shared_memory_folder_only_its_series_are_missing(box: Box, tmp_path: Path) -> None:
    registry = box_registry(box, shared_memory=tmp_path / "none")
    assert registry.get_sample_value("trireme_dev_shm_size_bytes") is None
    assert registry.get_sample_value("trireme_ready") == 1
