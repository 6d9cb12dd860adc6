"""CloudWatch's metrics: what has changed, as lines of the log in the embedded metric format."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from sm.metrics import BUCKETS
from sm.metrics.series import read_families
from sm.polling import Poll
from sm.run_state import Box
from sm.settings import EMF_NAMESPACE, Settings
from trireme_extensions.observe.counts import Counts, OwnSeries

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
    """Writes a line for each model and class of status that had requests since the last time, for each model
    of which a load or a version failed, or that was evicted, and for each of the clients' own series that
    changed.

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

        self._write_own(before, now)

    def _write_own(self, before: Counts, now: Counts) -> None:
        """Write the clients' own metrics that have changed."""
        for (name, labels), series in sorted(now.own.items(), key=lambda item: item[0]):
            earlier = before.own.get((name, labels))
            if series == earlier or not math.isfinite(series.value):
                continue
            (_, model), *others = labels
            since = earlier or OwnSeries(series.kind)
            value: Any = series.value if series.kind == "gauge" else series.value - since.value
            if series.kind == "histogram":
                buckets = growth(since.buckets, series.buckets)
                if not buckets:
                    continue
                value = distribution(buckets, sorted(series.buckets), value)
            elif series.kind == "counter" and value <= 0:
                continue
            metric = {"Name": name, "Unit": "Count" if series.kind == "counter" else "None"}
            self._write_document({"Model": model, **dict(others)}, (metric,), {name: value})

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
    """Return CloudWatch's distribution of an invocation's time in milliseconds."""
    return distribution(buckets, BUCKETS, seconds, 1000)


def distribution(
    buckets: Mapping[float, float], bounds: Sequence[float], total: float, factor: float = 1
) -> dict[str, Any]:
    """Return CloudWatch's distribution: bucket middles, counts, the exact sum.

    Args:
        buckets: How many numbers are in each bucket, by its upper bound.
        bounds: The upper bounds of all buckets, rising.
        total: The sum of the numbers.
        factor: Multiplies the numbers.
    """
    values = [round(factor * _middle(bound, bounds), 3) for bound in sorted(buckets)]
    return {
        "Values": values,
        "Counts": [int(buckets[bound]) for bound in sorted(buckets)],
        "Min": values[0],
        "Max": values[-1],
        "Count": int(sum(buckets.values())),
        "Sum": round(factor * total, 3),
    }


def _middle(bound: float, bounds: Sequence[float]) -> float:
    """Return the middle of a bucket; of the last one, which has no upper bound, its lower bound.

    The first bucket begins at 0, or at its bound if that is below.
    """
    lower = max((other for other in bounds if other < bound), default=min(0.0, bound))
    return lower if bound == math.inf else (lower + bound) / 2


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
        EMF_NAMESPACE,
        settings.endpoint_name,
    )
    Poll("embedded-metrics", INTERVAL_S, metrics.write_changes).start()
    return metrics


def _write_line(descriptor: int, line: str) -> None:
    # One call: the kernel does not mix a write of up to PIPE_BUF bytes with another thread's.
    os.write(descriptor, line.encode())
