"""The metrics of the whole box, from the files that its processes share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, mmap_dict
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from sm.control.box_series import BoxSeries
from sm.metrics.files import forget_gauges
from sm.metrics.series import read_families
from sm.run_state import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box("abc", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    box.save()
    return box


def box_registry(box: Box, state: str, shared_memory: Path = Path("/dev/shm")) -> CollectorRegistry:
    box.state_file.write_text(state)
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: True, shared_memory))
    return registry


def test_processes_and_workers_share_their_series(box: Box) -> None:
    key = mmap_key("trireme_restarts", "trireme_restarts_total", ["process"], ["worker"], "Help.")
    file: Any = MmapedDict(str(box.metrics_folder / "counter_7.db"))  # type: ignore[no-untyped-call]
    file.write_value(key, 2, 0.0)
    file.close()
    processes = {
        "nginx": {"pid": None, "state": "restarting", "restarts": 3},
        "data": {"pid": os.getpid(), "restarts": 0},
    }
    registry = box_registry(box, json.dumps({"processes": processes}))

    def sample(name: str, process: str) -> float | None:
        return registry.get_sample_value(name, {"process": process})

    assert [sample("trireme_restarts_total", name) for name in ("nginx", "worker")] == [3.0, 2.0]
    assert len([family for family in registry.collect() if family.name == "trireme_restarts"]) == 1
    # Only running processes have a size.
    assert (sample("trireme_process_resident_bytes", "data") or 0) > 2**20
    assert sample("trireme_process_resident_bytes", "nginx") is None


def test_a_scrape_reads_the_gauges_of_a_process_that_is_forgotten_meanwhile(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forgotten when the library has read the first page of their file."""
    file: Any = MmapedDict(str(box.metrics_folder / "gauge_livesum_99999999.db"))  # type: ignore[no-untyped-call]
    for number in range(99):
        file.write_value(mmap_key("gauge", "gauge", ["number"], [str(number)], "Help."), 1, 0.0)
    file.close()
    unpack = mmap_dict._unpack_integer

    def forget(data: bytes, position: int) -> Any:
        monkeypatch.setattr(mmap_dict, "_unpack_integer", unpack)
        forget_gauges(box.metrics_folder)
        return unpack(data, position)

    monkeypatch.setattr(mmap_dict, "_unpack_integer", forget)
    (gauge,) = read_families(box.metrics_folder)
    assert sum(sample.value for sample in gauge.samples) == 99
    assert not list(read_families(box.metrics_folder))


@pytest.mark.parametrize("state", ["", "{half of", "{}"], ids=["empty", "cut off", "no processes"])
@pytest.mark.parametrize("folder", ["/dev/shm", "/nowhere"])
def test_without_a_readable_state_file_or_shared_memory_the_other_series_remain(
    box: Box, state: str, folder: str
) -> None:
    registry = box_registry(box, state, Path(folder))
    assert registry.get_sample_value("trireme_ready") == 1
    assert (registry.get_sample_value("trireme_dev_shm_size_bytes") is None) is (folder == "/nowhere")
