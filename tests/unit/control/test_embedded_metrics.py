"""Embedded metrics for CloudWatch: what a line contains, that nothing counts twice, and when they are on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sm.control.embedded_metrics import CREDENTIALS, EmbeddedMetrics, is_on
from sm.control.series import DURATIONS, MODEL_METRICS
from sm.metrics import BUCKETS, EVICTIONS, LOADS, VERSIONS
from sm.server import logs
from sm.server.logs import parse
from sm.settings import Settings
from tests.support import embedded_metric_format

NOW = 1_790_000_000.5


class MetricsSetup:
    """The router's histogram, and the lines written from it."""

    def __init__(self, endpoint: str = "") -> None:
        self.registry = CollectorRegistry()
        self.histogram = Histogram(
            DURATIONS, "x", ["model", "stage", "status"], buckets=BUCKETS, registry=self.registry
        )
        self._lines: list[str] = []
        self._endpoint = endpoint
        self.metrics = self.restart()

    def restart(self) -> EmbeddedMetrics:
        """Return the embedded metrics of a restarted control plane."""
        return EmbeddedMetrics(
            self.registry.collect, self._lines.append, "Trireme", self._endpoint, clock=lambda: NOW
        )

    def observe(self, model: str, status: str, *seconds: float, stage: str = "total") -> None:
        for value in seconds:
            self.histogram.labels(model, stage, status).observe(value)

    def write_lines(self) -> list[dict[str, Any]]:
        self.metrics.write_changes()
        lines, self._lines[:] = self._lines[:], []
        return [embedded_metric_format.read(line) for line in lines]


def test_a_line_has_requests_errors_and_latency_by_model_and_status_class() -> None:
    setup = MetricsSetup("ships")
    setup.observe("resnet", "2xx", 0.012, 0.013, 0.07)
    setup.observe("resnet", "2xx", 0.4, stage="decode")
    (line,) = setup.write_lines()
    assert line["_aws"] == {
        "Timestamp": 1_790_000_000_500,
        "CloudWatchMetrics": [
            {
                "Namespace": "Trireme",
                "Dimensions": [["Endpoint", "Model", "Status"], ["Endpoint", "Model"], ["Endpoint"]],
                "Metrics": [
                    {"Name": "Requests", "Unit": "Count"},
                    {"Name": "Errors", "Unit": "Count"},
                    {"Name": "Latency", "Unit": "Milliseconds"},
                ],
            }
        ],
    }
    assert (line["Endpoint"], line["Model"], line["Status"]) == ("ships", "resnet", "2xx")
    assert (line["Requests"], line["Errors"]) == (3, 0)
    assert line["Latency"] == {
        "Values": [15.0, 75.0],
        "Counts": [2, 1],
        "Min": 15.0,
        "Max": 75.0,
        "Sum": 95.0,
        "Count": 3,
    }


def test_only_new_requests_are_written() -> None:
    setup = MetricsSetup()
    setup.observe("a", "2xx", 0.1)
    assert len(setup.write_lines()) == 1
    assert setup.write_lines() == []
    setup.observe("a", "5xx", 0.1, 0.1)
    setup.observe("b", "4xx", 100.0)
    failed, refused = setup.write_lines()
    assert (failed["Requests"], failed["Errors"], refused["Errors"]) == (2, 2, 0)
    assert refused["Latency"]["Values"] == [60_000.0]
    setup.metrics = setup.restart()
    assert setup.write_lines() == []


def test_a_line_with_every_bucket_is_within_the_limits_of_the_format() -> None:
    setup = MetricsSetup()
    setup.observe("a" * 1000, "2xx", *BUCKETS, 1000.0)
    (line,) = setup.write_lines()
    assert line["Latency"]["Count"] == len(BUCKETS) + 1


@pytest.mark.parametrize(("level", "as_text"), [("error", False), ("info", True), ("error", True)])
def test_the_line_is_written_as_json_at_every_log_level_and_format(level: str, as_text: bool) -> None:
    setup = MetricsSetup()
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
    setup = MetricsSetup("ships")
    counters = {
        name: Counter(f"{name}_total", "x", labels, registry=setup.registry)
        for name, labels in (
            ("trireme_model_loads", ["model", "outcome"]),
            ("trireme_model_evictions", ["model"]),
            ("trireme_model_versions", ["model", "outcome"]),
        )
    }
    counters["trireme_model_loads"].labels("cats", "failed").inc(2)
    counters["trireme_model_loads"].labels("cats", "loaded").inc(5)
    counters["trireme_model_evictions"].labels("dogs").inc()
    counters["trireme_model_versions"].labels("cats", "serves").inc()
    evictions, failed = sorted(setup.write_lines(), key=lambda line: "FailedLoads" in line)
    assert (evictions["Model"], evictions["Evictions"]) == ("dogs", 1)
    assert (failed["Model"], failed["FailedLoads"]) == ("cats", 2)
    (directive,) = failed["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Endpoint", "Model"], ["Endpoint"]]
    assert directive["Metrics"] == [{"Name": "FailedLoads", "Unit": "Count"}]
    counters["trireme_model_versions"].labels("cats", "failed").inc()
    (version,) = setup.write_lines()
    assert version["FailedVersions"] == 1


def test_the_counters_of_the_box_have_the_names_that_are_read() -> None:
    families = [family for counter in (LOADS, EVICTIONS, VERSIONS) for family in counter.collect()]
    assert [family.name for family in families] == [*MODEL_METRICS]


def test_the_clients_own_metrics_have_lines_when_they_change() -> None:
    setup = MetricsSetup("ships")
    found = Counter("trireme_client_found", "x", ["model", "animal"], registry=setup.registry)
    size = Histogram("trireme_client_size", "x", ["model"], buckets=(10, 20), registry=setup.registry)
    age = Gauge("trireme_client_age", "x", ["model"], registry=setup.registry)
    assert setup.write_lines() == []
    found.labels("a", "cat").inc(2.5)
    for number in (3, 12, 18, 100):
        size.labels("a").observe(number)
    age.labels("a").set(-4)
    lines = {line["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"]: line for line in setup.write_lines()}
    counted = lines["trireme_client_found"]
    assert (counted["Model"], counted["animal"], counted["trireme_client_found"]) == ("a", "cat", 2.5)
    (directive,) = counted["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Endpoint", "Model", "animal"], ["Endpoint", "Model"], ["Endpoint"]]
    assert directive["Metrics"] == [{"Name": "trireme_client_found", "Unit": "Count"}]
    assert lines["trireme_client_age"]["trireme_client_age"] == -4
    assert lines["trireme_client_size"]["trireme_client_size"] == {
        "Values": [5.0, 15.0, 20.0],
        "Counts": [1, 2, 1],
        "Min": 5.0,
        "Max": 20.0,
        "Count": 4,
        "Sum": 133.0,
    }
    assert setup.write_lines() == []
    found.labels("a", "cat").inc()
    (line,) = setup.write_lines()
    assert line["trireme_client_found"] == 1


def test_a_number_that_json_does_not_have_is_not_written() -> None:
    """A team may have a metric of prometheus_client by such a name, and that checks nothing."""
    setup = MetricsSetup()
    Counter("trireme_client_found", "x", registry=setup.registry).inc(math.inf)
    Gauge("trireme_client_age", "x", registry=setup.registry).set(math.nan)
    assert setup.write_lines() == []
