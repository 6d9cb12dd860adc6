"""Embedded metrics for CloudWatch: what a line contains, that nothing counts twice, and when they are on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sm.metrics import BUCKETS, EVICTIONS, LOADS, VERSIONS
from sm.server import logs
from sm.server.logs import parse
from sm.settings import Settings
from tests.support import embedded_metric_format
from trireme_extensions.observe.counts import DURATIONS, MODEL_METRICS
from trireme_extensions.observe.embedded_metrics import CREDENTIALS, EmbeddedMetrics, is_on


class Setup:
    """The router's histogram, and the lines written from it."""

    def __init__(self) -> None:
        self.registry, self._lines = CollectorRegistry(), list[str]()
        labels = ["model", "stage", "status"]
        self.histogram = Histogram(DURATIONS, "x", labels, buckets=BUCKETS, registry=self.registry)
        self.restart()

    def restart(self) -> None:
        """Restart the control plane."""
        self.metrics = EmbeddedMetrics(
            self.registry.collect, self._lines.append, "Trireme", "ships", clock=lambda: 1_790_000_000.5
        )

    def observe(self, model: str, status: str, *seconds: float, stage: str = "total") -> None:
        for value in seconds:
            self.histogram.labels(model, stage, status).observe(value)

    def write_lines(self) -> list[dict[str, Any]]:
        """Write what changed; each line is checked against the limits of the format."""
        self.metrics.write_changes()
        lines, self._lines[:] = self._lines[:], []
        return [embedded_metric_format.read(line) for line in lines]


def directive(line: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the dimensions of a line, and the names of its metrics."""
    (found,) = line["_aws"]["CloudWatchMetrics"]
    return found["Dimensions"], [metric["Name"] for metric in found["Metrics"]]


def test_a_line_has_requests_errors_and_latency_by_model_and_status_class() -> None:
    setup = Setup()
    setup.observe("resnet", "2xx", 0.012, 0.013, 0.07)
    setup.observe("resnet", "2xx", 0.4, stage="decode")
    (line,) = setup.write_lines()
    assert line["_aws"]["Timestamp"] == 1_790_000_000_500
    dimensions = [["Endpoint", "Model", "Status"], ["Endpoint", "Model"], ["Endpoint"]]
    assert directive(line) == (dimensions, ["Requests", "Errors", "Latency"])
    assert (line["Endpoint"], line["Model"], line["Status"]) == ("ships", "resnet", "2xx")
    assert (line["Requests"], line["Errors"]) == (3, 0)
    bounds = {"Values": [15.0, 75.0], "Counts": [2, 1], "Min": 15.0, "Max": 75.0}
    assert line["Latency"] == {**bounds, "Sum": 95.0, "Count": 3}


def test_only_new_requests_are_written() -> None:
    setup = Setup()
    setup.observe("a" * 1000, "2xx", *BUCKETS, 1000.0)
    (line,) = setup.write_lines()
    assert line["Latency"]["Count"] == len(BUCKETS) + 1
    assert setup.write_lines() == []
    setup.observe("a", "5xx", 0.1, 0.1)
    setup.observe("b", "4xx", 100.0)
    failed, refused = setup.write_lines()
    assert (failed["Requests"], failed["Errors"], refused["Errors"]) == (2, 2, 0)
    assert refused["Latency"]["Values"] == [60_000.0]
    setup.restart()
    assert setup.write_lines() == []


@pytest.mark.parametrize(("level", "as_text"), [("error", False), ("info", True), ("error", True)])
def test_the_line_is_written_as_json_at_every_log_level_and_format(level: str, as_text: bool) -> None:
    setup = Setup()
    setup.observe("a", "2xx", 0.1)
    (document,) = setup.write_lines()
    line = logs.Formatter(level, as_text, colour=as_text).line("control", parse(logs.as_json(document)))
    assert embedded_metric_format.read(line.decode())["Requests"] == 1


@pytest.mark.parametrize(
    ("setting", "environment", "expected"),
    [
        ("auto", {CREDENTIALS: "/x"}, True),
        ("auto", {}, False),
        ("on", {}, True),
        ("off", {CREDENTIALS: "/x"}, False),
    ],
)
def test_embedded_metrics_are_on_if_set_or_on_sagemaker(
    tmp_path: Path, setting: str, environment: dict[str, str], expected: bool
) -> None:
    assert is_on(Settings(emf=setting), environment, tmp_path) is expected


def test_failed_loads_evictions_and_failed_versions_have_lines_of_their_own() -> None:
    families = [family for counter in (LOADS, EVICTIONS, VERSIONS) for family in counter.collect()]
    assert [family.name for family in families] == [*MODEL_METRICS]
    setup = Setup()
    labels = {"loads": ["model", "outcome"], "evictions": ["model"], "versions": ["model", "outcome"]}
    loads, evictions, versions = (
        Counter(f"trireme_model_{name}_total", "x", each, registry=setup.registry)
        for name, each in labels.items()
    )
    loads.labels("cats", "failed").inc(2)
    loads.labels("cats", "loaded").inc(5)
    evictions.labels("dogs").inc()
    versions.labels("cats", "serves").inc()
    evicted, failed = sorted(setup.write_lines(), key=lambda line: "FailedLoads" in line)
    assert (evicted["Model"], evicted["Evictions"]) == ("dogs", 1)
    assert (failed["Model"], failed["FailedLoads"]) == ("cats", 2)
    assert directive(failed) == ([["Endpoint", "Model"], ["Endpoint"]], ["FailedLoads"])
    versions.labels("cats", "failed").inc()
    (version,) = setup.write_lines()
    assert version["FailedVersions"] == 1


def test_the_clients_own_metrics_have_lines_when_they_change() -> None:
    setup = Setup()
    found = Counter("trireme_client_found", "x", ["model", "animal"], registry=setup.registry)
    size = Histogram("trireme_client_size", "x", ["model"], buckets=(10, 20), registry=setup.registry)
    age = Gauge("trireme_client_age", "x", ["model"], registry=setup.registry)
    assert setup.write_lines() == []
    found.labels("a", "cat").inc(2.5)
    for number in (3, 12, 18, 100):
        size.labels("a").observe(number)
    age.labels("a").set(-4)
    lines = {directive(line)[1][0].rpartition("_")[2]: line for line in setup.write_lines()}
    counted = lines["found"]
    assert (counted["Model"], counted["animal"], counted["trireme_client_found"]) == ("a", "cat", 2.5)
    assert directive(counted)[0] == [["Endpoint", "Model", "animal"], ["Endpoint", "Model"], ["Endpoint"]]
    assert lines["age"]["trireme_client_age"] == -4
    bounds = {"Values": [5.0, 15.0, 20.0], "Counts": [1, 2, 1], "Min": 5.0, "Max": 20.0}
    assert lines["size"]["trireme_client_size"] == {**bounds, "Count": 4, "Sum": 133.0}
    found.labels("a", "cat").inc()
    (line,) = setup.write_lines()
    assert line["trireme_client_found"] == 1


def test_a_number_that_json_does_not_have_is_not_written() -> None:
    """A team may have a metric of prometheus_client by such a name, and that checks nothing."""
    setup = Setup()
    Counter("trireme_client_found", "x", registry=setup.registry).inc(math.inf)
    Gauge("trireme_client_age", "x", registry=setup.registry).set(math.nan)
    assert setup.write_lines() == []
