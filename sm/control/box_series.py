"""The series of one scrape: the workers' sums, and what only the whole box knows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sm import __version__, hardware
from sm.control.state import is_ready
from sm.metrics.series import read_families
from sm.run_state import SHARED_MEMORY, Box, read_engines, read_json


def router_metrics(box: Box) -> bytes:
    """Return the sums of all workers' series, and the series of the whole box."""
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: is_ready(box)))
    return generate_latest(registry)


RESTARTS = "trireme_restarts"


class BoxSeries(Collector):
    """Collects the series of one scrape.

    Args:
        box: The box.
        is_ready: Returns True if ``/ping`` would answer 200.
        shared_memory: The folder of shared memory.
    """

    def __init__(self, box: Box, is_ready: Callable[[], bool], shared_memory: Path = SHARED_MEMORY) -> None:
        self._box, self._is_ready, self._shared_memory = box, is_ready, shared_memory

    def collect(self) -> Iterator[Metric]:
        processes = read_json(self._box.state_file, {}).get("processes", {})
        yield build_info()
        yield GaugeMetricFamily(
            "trireme_ready", "1 if the box can serve, as /ping says it.", float(self._is_ready())
        )
        yield from self._folder_space()
        fetched, seconds = self._box.fetched_bytes, self._box.fetch_seconds
        what = "Bytes of models that came over the network before the start."
        yield GaugeMetricFamily("trireme_fetch_bytes", what, fetched)
        yield GaugeMetricFamily("trireme_fetch_seconds", "Seconds that this took.", seconds)
        yield _resident(processes)
        yield _engines(read_engines(self._box))
        yield from self._worker_series(processes)

    def _worker_series(self, processes: Mapping[str, Any]) -> Iterator[Metric]:
        """Yield the workers' series. The supervisor's restarts join theirs, because a family occurs once."""
        for family in read_families(self._box.metrics_folder):
            if family.name == RESTARTS:
                for name, process in processes.items():
                    family.add_sample(f"{RESTARTS}_total", {"process": name}, float(process["restarts"]))
            yield family

    def _folder_space(self) -> Iterator[Metric]:
        """Yield the size and the free space of the folder of shared memory."""
        with contextlib.suppress(OSError):
            space = os.statvfs(self._shared_memory)
            size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
            yield GaugeMetricFamily("trireme_dev_shm_size_bytes", "Size of /dev/shm.", size)
            yield GaugeMetricFamily("trireme_dev_shm_free_bytes", "Free space in /dev/shm.", free)


def build_info() -> Metric:
    """Return the series that states the version."""
    family = GaugeMetricFamily("trireme_build_info", "The version of the box.", labels=["version"])
    family.add_metric([__version__], 1.0)
    return family


def _engines(choices: Mapping[str, dict[str, Any]]) -> Metric:
    labels = ("model", "version", "engine", "precision")
    family = GaugeMetricFamily(
        "trireme_model_engine_info", "What runs a model of the CPU target.", labels=labels
    )
    for choice in filter(None, choices.values()):
        family.add_metric([choice[label] for label in labels], 1.0)
    return family


def _resident(processes: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily(
        "trireme_process_resident_bytes",
        "Memory in RAM of a process and its descendants; pages that they share count for each.",
        labels=["process"],
    )
    for name, process in processes.items():
        if process["pid"]:
            pids = hardware.with_descendants(process["pid"])
            family.add_metric([name], sum(map(hardware.resident_bytes, pids)))
    return family
