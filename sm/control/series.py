"""The series that the workers count: one source of ``/metrics``, the dashboard, ``sm top`` and CloudWatch."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from sm.metrics import BUCKETS, TOTAL, USED
from sm.polling import Poll
from sm.run_state import Box
from sm.settings import Settings

#: The series that are read, see sm.metrics.
ANSWERS, IN_FLIGHT = "trireme_invocations", "trireme_in_flight"
MODEL_THREADS, MODEL_QUEUE = "trireme_model_in_flight", "trireme_model_queue_length"
DURATIONS = "trireme_invocation_duration_seconds"
#: What alarms need of models that come and go: CloudWatch's name by the counter's. Only failures of the first
#: and last are counted.
MODEL_METRICS = {
    "trireme_model_loads": "FailedLoads",
    "trireme_model_evictions": "Evictions",
    "trireme_model_versions": "FailedVersions",
}
#: The shares of invocations that are as fast as a percentile, or faster.
PERCENTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
#: Stages of a model that are reported, the longest ones; a client may name any number.
MAX_STAGES = 10


@dataclass(frozen=True)
class Counts:
    """Sums over all workers. ``threads``, ``queues`` and ``in_flight`` are gauges; the others only grow."""

    #: Unix time.
    at: float
    #: Answers by model and status.
    answers: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Invocations by model and class of status, then by upper bound in seconds, cumulative.
    durations: dict[tuple[str, str], dict[float, float]] = field(default_factory=dict)
    #: Seconds of these invocations in all.
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Seconds by model and stage.
    stages: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Threads that work for a model, and requests in its queue.
    threads: dict[str, float] = field(default_factory=dict)
    queues: dict[str, float] = field(default_factory=dict)
    #: By model and by the names of :data:`MODEL_METRICS`.
    models: dict[tuple[str, str], float] = field(default_factory=dict)
    in_flight: float = 0.0

    @classmethod
    def from_families(cls, families: Iterable[Metric], at: float) -> Counts:
        counts, in_flight = cls(at), 0.0
        for family in families:
            if family.name == IN_FLIGHT:
                in_flight = sum(sample.value for sample in family.samples)
            elif family.name in (MODEL_THREADS, MODEL_QUEUE):
                gauges = counts.threads if family.name == MODEL_THREADS else counts.queues
                gauges.update({sample.labels["model"]: sample.value for sample in family.samples})
            elif family.name == ANSWERS:
                for sample in family.samples:
                    counts.answers[sample.labels["model"], sample.labels["status"]] = sample.value
            elif family.name == DURATIONS:
                counts._add_durations(family)
            elif name := MODEL_METRICS.get(family.name):
                for sample in family.samples:
                    is_created = sample.name.endswith("_created")
                    if not is_created and sample.labels.get("outcome", "failed") == "failed":
                        counts.models[sample.labels["model"], name] = sample.value
        return cls(**{**vars(counts), "in_flight": in_flight})

    def _add_durations(self, family: Metric) -> None:
        """Add the histograms of whole invocations and of stages. Stages are summed over all statuses."""
        for sample in family.samples:
            model, stage = sample.labels["model"], sample.labels["stage"]
            key = model, sample.labels["status"]
            if sample.name.endswith("_bucket") and stage == TOTAL:
                self.durations.setdefault(key, {})[float(sample.labels["le"])] = sample.value
            elif sample.name.endswith("_sum") and stage == TOTAL:
                self.seconds[key] = sample.value
            elif sample.name.endswith("_sum"):
                self.stages[model, stage] = self.stages.get((model, stage), 0.0) + sample.value


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return what is in the workers' files. If it is unchanged, so are the series."""
    contents = {}
    for path in folder.glob("*.db"):
        with contextlib.suppress(OSError, struct.error), path.open("rb") as file:
            (used,) = USED.unpack(file.read(USED.size))
            contents[path.name] = file.read(max(0, used - USED.size))
    return contents


def read_families(folder: Path) -> Iterable[Metric]:
    """Read the series of all workers, summed, from their files in ``folder``.

    A file is empty until its worker has given it a size; the collector would fail at it.
    """
    files = [str(path) for path in folder.glob("*.db") if _size(path)]
    families: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
    return families


def _size(path: Path) -> int:
    """Return a file's bytes; 0 for one that its worker has just removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def describe(before: Counts, after: Counts) -> dict[str, Any]:
    """Describe what happened between two moments, for each model and for all together.

    Idle models are left out, so the description is short even in a box with hundreds of models.
    """
    by_model: dict[str, dict[str, float]] = {}
    by_status: dict[str, float] = {}
    for (model, status), number in after.answers.items():
        growth = number - before.answers.get((model, status), 0.0)
        if growth > 0:
            by_model.setdefault(model, {})[status] = growth
            by_status[status] = by_status.get(status, 0.0) + growth
    durations: dict[str, list[dict[float, float]]] = {}
    for key, bounds in after.durations.items():
        durations.setdefault(key[0], []).append(_subtract(before.durations.get(key, {}), bounds))
    busy = {model for gauge in (after.threads, after.queues) for model in gauge if gauge[model] > 0}
    models = {
        model: {
            **_describe_answers(by_model.get(model, {})),
            **_percentiles(durations.get(model, [])),
            "threads": round(after.threads.get(model, 0)),
            "queue": round(after.queues.get(model, 0)),
            "stages_ms": _stages(before, after, model),
        }
        for model in sorted(by_model.keys() | busy)
    }
    return {
        "at": round(after.at, 3),
        "seconds": round(after.at - before.at, 3),
        "all": {
            **_describe_answers(by_status),
            **_percentiles([bounds for model in by_model for bounds in durations.get(model, [])]),
            "in_flight": round(after.in_flight),
            "queue": round(sum(after.queues.values())),
        },
        "models": models,
    }


def _subtract(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {bound: after[bound] - before.get(bound, 0.0) for bound in after}


def _describe_answers(by_status: Mapping[str, float]) -> dict[str, Any]:
    """Return the answers by class of status, such as ``2xx``."""
    classes: dict[str, int] = {}
    for status, number in by_status.items():
        name = f"{status[:1]}xx"
        classes[name] = classes.get(name, 0) + round(number)
    return {"answers": dict(sorted(classes.items()))}


def _percentiles(durations: Sequence[Mapping[float, float]]) -> dict[str, float | None]:
    total_bounds: dict[float, float] = {}
    for bounds in durations:
        for bound, number in bounds.items():
            total_bounds[bound] = total_bounds.get(bound, 0.0) + number
    found = {name: percentile(total_bounds, share) for name, share in PERCENTILES.items()}
    return {name: seconds and round(seconds * 1000, 2) for name, seconds in found.items()}


def percentile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Estimate a percentile in seconds; None if there was no invocation.

    As Prometheus does: the invocations of a bucket are taken as spread evenly over it, and what is beyond the
    last bound counts as that bound.

    Args:
        cumulative: invocations by upper bound in seconds, the last of which is infinite.
        share: from 0 to 1.
    """
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, lower, below = share * total, 0.0, 0.0
    for bound in bounds:
        number = cumulative[bound]
        if number >= rank and number > below:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (rank - below) / (number - below)
        lower, below = bound, number
    return lower


def _stages(before: Counts, after: Counts, model: str) -> dict[str, float]:
    """Return the milliseconds of the model's stages, the longest first."""
    durations = {
        stage: 1000 * (seconds - before.stages.get((name, stage), 0.0))
        for (name, stage), seconds in after.stages.items()
        if name == model
    }
    longest = sorted(durations, key=lambda stage: -durations[stage])[:MAX_STAGES]
    return {stage: round(durations[stage], 2) for stage in longest if durations[stage] > 0}


INTERVAL_S = 15.0
#: The platform's folder.
PLATFORM = Path("/opt/ml")
#: SageMaker sets this variable in every container with a role.
CREDENTIALS = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
METRICS = (
    {"Name": "Requests", "Unit": "Count"},
    {"Name": "Errors", "Unit": "Count"},
    {"Name": "Latency", "Unit": "Milliseconds"},
)


class EmbeddedMetrics:
    """Writes a line for each model and class of status that had requests since the last time, and for each
    model of which a load or a version failed, or that was evicted.

    Args:
        collect: Returns the router's series of all workers.
        write: Writes a line.
        namespace: CloudWatch's namespace of the metrics.
        endpoint: The endpoint's name as a dimension; empty for none.
        clock: Returns the seconds since 1970.
    """

    def __init__(
        self,
        collect: Callable[[], Iterable[Metric]],
        write: Callable[[str], object],
        namespace: str,
        endpoint: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._collect, self._write, self._clock = collect, write, clock
        self._namespace, self._endpoint = namespace, endpoint
        self._lock = threading.Lock()
        # An earlier process has written what was counted before this one started.
        self._before = Counts.from_families(collect(), clock())

    def write_changes(self) -> None:
        """Write the lines of what has happened since the last call."""
        with self._lock:
            now, before = Counts.from_families(self._collect(), self._clock()), self._before
            self._before = now
        for key, bounds in sorted(now.durations.items()):
            buckets = growth(before.durations.get(key, {}), bounds)
            if buckets:
                seconds = max(0.0, now.seconds[key] - before.seconds.get(key, 0.0))
                requests = int(sum(buckets.values()))
                values = {
                    "Requests": requests,
                    # Also written where it is 0, so that Errors divided by Requests is the error rate.
                    "Errors": requests if key[1] == "5xx" else 0,
                    "Latency": latency(buckets, seconds),
                }
                self._write_document({"Model": key[0], "Status": key[1]}, METRICS, values)
        for (model, name), number in sorted(now.models.items()):
            if grown := int(number - before.models.get((model, name), 0.0)):
                self._write_document({"Model": model}, ({"Name": name, "Unit": "Count"},), {name: grown})

    def _write_document(
        self, labels: Mapping[str, str], metrics: Sequence[Mapping[str, str]], values: Mapping[str, Any]
    ) -> None:
        """Write a record of the log that CloudWatch reads too: by all labels, by model, and of all."""
        endpoint = {"Endpoint": self._endpoint} if self._endpoint else {}
        dimensions = [[*endpoint, *list(labels)[:count]] for count in range(len(labels), -1, -1)]
        document = {
            "level": "info",
            "message": "metrics",
            "_aws": {
                "Timestamp": int(self._clock() * 1000),
                "CloudWatchMetrics": [
                    {
                        "Namespace": self._namespace,
                        "Dimensions": dimensions,
                        "Metrics": list(metrics),
                    }
                ],
            },
            **endpoint,
            **labels,
            **values,
        }
        self._write(json.dumps(document, ensure_ascii=False) + "\n")


def growth(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    """Return the requests between two moments by the upper bound of their time; each counts once.

    Args:
        before: Requests by upper bound, cumulative.
        after: The same later. A count that fell was reset.
    """
    grown, below = {}, 0.0
    for bound in sorted(after):
        total = after[bound] - before.get(bound, 0.0)
        if total > below:
            grown[bound] = total - below
        below = max(below, total)
    return grown


def latency(buckets: Mapping[float, float], seconds: float) -> dict[str, Any]:
    """Return CloudWatch's distribution in milliseconds: bucket middles, counts, the exact sum."""
    bounds = sorted(buckets)
    values = [round(1000 * _middle(bound), 3) for bound in bounds]
    return {
        "Values": values,
        "Counts": [int(buckets[bound]) for bound in bounds],
        "Min": values[0],
        "Max": values[-1],
        "Count": int(sum(buckets.values())),
        "Sum": round(1000 * seconds, 3),
    }


def _middle(bound: float) -> float:
    """Return the middle of a bucket; for the last, which has no upper bound, its lower bound."""
    lower = max((other for other in BUCKETS if other < bound), default=0.0)
    return lower if bound == float("inf") else (lower + bound) / 2


def is_on(settings: Settings, environment: Mapping[str, str], platform: Path = PLATFORM) -> bool:
    """True if the setting is ``on``, or if it is ``auto`` and the box runs on SageMaker."""
    if settings.emf == "auto":
        return CREDENTIALS in environment and platform.is_dir()
    return settings.emf == "on"


def start_embedded_metrics(settings: Settings, box: Box) -> EmbeddedMetrics | None:
    """Start writing the metrics, if they are on."""
    if not is_on(settings, os.environ):
        return None
    # Not through Python's logging, whose level could drop the lines.
    metrics = EmbeddedMetrics(
        partial(read_families, box.metrics_folder),
        partial(_write_line, sys.stderr.fileno()),
        settings.emf_namespace,
        settings.endpoint_name,
    )
    Poll("embedded-metrics", INTERVAL_S, metrics.write_changes).start()
    return metrics


def _write_line(descriptor: int, line: str) -> None:
    # One call: the kernel does not mix a write of up to PIPE_BUF bytes with another thread's.
    os.write(descriptor, line.encode())
