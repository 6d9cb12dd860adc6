"""What the workers have counted, and what happened between two moments: for the dashboard and CloudWatch."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from sm.metrics import CLIENT_PREFIX, NO_MODEL, TOTAL

#: The series that are read, see sm.metrics.
ANSWERS, IN_FLIGHT = "trireme_invocations", "trireme_in_flight"
MODEL_THREADS, MODEL_QUEUE = "trireme_model_in_flight", "trireme_model_queue_length"
DURATIONS = "trireme_invocation_duration_seconds"
#: CloudWatch's names of the counters that alarms on models that come and go need. Of the first and the last
#: only failures are counted.
MODEL_METRICS = {
    "trireme_model_loads": "FailedLoads",
    "trireme_model_evictions": "Evictions",
    "trireme_model_versions": "FailedVersions",
}
#: Rows of the clients' own metrics that are reported.
MAX_OWN_ROWS = 200
#: A file of series begins with the count of its used bytes.
USED = struct.Struct("i")
#: The shares of invocations that are as fast as a percentile, or faster.
PERCENTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
#: Stages of a model that are reported, the longest ones; a client may name any number.
MAX_STAGES = 10


@dataclass(frozen=True)
class OwnSeries:
    """A series of a client's own metric."""

    #: ``counter``, ``gauge`` or ``histogram``.
    kind: str
    #: The count, the gauge's value, or the sum of a histogram's numbers.
    value: float = 0.0
    #: Cumulative counts of a histogram's numbers, by upper bound.
    buckets: dict[float, float] = field(default_factory=dict)


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
    #: The counters of models, by model and by the names of :data:`MODEL_METRICS`.
    models: dict[tuple[str, str], float] = field(default_factory=dict)
    #: The series of clients' own metrics, by the metric's name and its labels, ``model`` first.
    own: dict[tuple[str, tuple[tuple[str, str], ...]], OwnSeries] = field(default_factory=dict)
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
            elif family.name.startswith(CLIENT_PREFIX):
                counts._add_own(family)
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

    def _add_own(self, family: Metric) -> None:
        """Add a metric of clients."""
        for sample in family.samples:
            labels = {"model": sample.labels.get("model", NO_MODEL), **sample.labels}
            bound = labels.pop("le", None)
            if sample.name.endswith(("_created", "_count")) and sample.name != family.name:
                continue
            key = family.name, tuple(labels.items())
            series = self.own.setdefault(key, OwnSeries(family.type))
            if bound is not None:
                series.buckets[float(bound)] = sample.value
            else:
                self.own[key] = replace(series, value=sample.value)


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return what is in the workers' files. If it is unchanged, so are the series."""
    contents = {}
    for path in folder.glob("*.db"):
        with contextlib.suppress(OSError, struct.error), path.open("rb") as file:
            (used,) = USED.unpack(file.read(USED.size))
            contents[path.name] = file.read(max(0, used - USED.size))
    return contents


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


def describe_own(before: Counts, after: Counts) -> list[dict[str, Any]]:
    """Describe the clients' own metrics: what they are, and what happened between two moments.

    What was never counted is left out. ``mean`` is that of a histogram's numbers between the moments.
    """
    rows = []
    for (name, labels), series in sorted(after.own.items(), key=lambda item: item[0]):
        earlier = before.own.get((name, labels), OwnSeries(series.kind))
        value, grown, mean = series.value, series.value - earlier.value, None
        if series.kind == "histogram":
            total, value = grown, series.buckets.get(math.inf, 0.0)
            grown = value - earlier.buckets.get(math.inf, 0.0)
            mean = total / grown if grown > 0 else None
        if series.kind != "gauge" and not value:
            continue
        (_, model), *others = labels
        known = {"name": name.removeprefix(CLIENT_PREFIX), "model": model, "labels": dict(others)}
        grown_since = None if series.kind == "gauge" else max(0.0, grown)
        rows.append({**known, "kind": series.kind, "value": value, "last_minute": grown_since, "mean": mean})
    return rows[:MAX_OWN_ROWS]


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


def _stages(before: Counts, after: Counts, model: str) -> dict[str, float]:
    """Return the milliseconds of the model's stages, the longest first."""
    durations = {
        stage: 1000 * (seconds - before.stages.get((name, stage), 0.0))
        for (name, stage), seconds in after.stages.items()
        if name == model
    }
    longest = sorted(durations, key=lambda stage: -durations[stage])[:MAX_STAGES]
    return {stage: round(durations[stage], 2) for stage in longest if durations[stage] > 0}


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
