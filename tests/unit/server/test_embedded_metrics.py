"""Metrics for CloudWatch: what is in a line, that nothing is counted twice, and when they are on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram

from sm import logs
from sm.errors import StartError
from sm.metrics import BUCKETS
from sm.server.embedded_metrics import CREDENTIALS, FAMILY, EmbeddedMetrics, is_on
from sm.server.supervisor.log_lines import parse
from sm.settings import Settings
from tests.support import embedded_metric_format

NOW = 1_790_000_000.5


class Series:
    """The router's histogram, and the lines that are written of it."""

    def __init__(self, endpoint: str = "") -> None:
        self.registry = CollectorRegistry()
        self.histogram = Histogram(
            FAMILY, "x", ["model", "stage", "status"], buckets=BUCKETS, registry=self.registry
        )
        self._lines: list[str] = []
        self._endpoint = endpoint
        self.metrics = self.restart()

    def restart(self) -> EmbeddedMetrics:
        """What a new control plane starts with."""
        return EmbeddedMetrics(
            self.registry.collect, self._lines.append, "Trireme", self._endpoint, clock=lambda: NOW
        )

    def observe(self, model: str, status: str, *seconds: float, stage: str = "total") -> None:
        for each in seconds:
            self.histogram.labels(model, stage, status).observe(each)

    def written(self) -> list[dict[str, Any]]:
        self.metrics.write_changes()
        lines, self._lines[:] = self._lines[:], []
        return [embedded_metric_format.read(line) for line in lines]


def test_a_line_has_requests_errors_and_latency_of_a_model_and_class_of_status() -> None:
    series = Series("ships")
    series.observe("resnet", "2xx", 0.012, 0.013, 0.07)
    series.observe("resnet", "2xx", 0.4, stage="decode")
    (line,) = series.written()
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


def test_only_what_is_new_is_written_and_nothing_twice() -> None:
    series = Series()
    series.observe("a", "2xx", 0.1)
    assert len(series.written()) == 1
    assert series.written() == []
    series.observe("a", "5xx", 0.1, 0.1)
    series.observe("b", "4xx", 100.0)
    failed, refused = series.written()
    assert (failed["Requests"], failed["Errors"], refused["Errors"]) == (2, 2, 0)
    assert refused["Latency"]["Values"] == [60_000.0]
    series.metrics = series.restart()
    assert series.written() == []


def test_every_bucket_at_once_is_within_the_limits_of_the_format() -> None:
    series = Series()
    series.observe("a" * 1000, "2xx", *BUCKETS, 1000.0)
    (line,) = series.written()
    assert line["Latency"]["Count"] == len(BUCKETS) + 1


@pytest.mark.parametrize(("level", "text"), [("error", False), ("info", True), ("error", True)])
def test_the_supervisor_writes_the_line_as_json_at_every_level_and_in_every_form(
    level: str, text: bool
) -> None:
    series = Series()
    series.observe("a", "2xx", 0.1)
    (document,) = series.written()
    line = logs.Formatter(level, text, colour=text).line("control", parse(logs.as_json(document)))
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
def test_they_are_on_where_that_is_set_or_on_sagemaker(
    tmp_path: Path, setting: str, environment: dict[str, str], expected: bool
) -> None:
    assert is_on(Settings(emf=setting), environment, tmp_path / "model") is expected


def test_a_machine_with_credentials_and_without_the_platforms_folder_is_not_sagemaker(
    tmp_path: Path,
) -> None:
    assert not is_on(Settings(), {CREDENTIALS: "/x"}, tmp_path / "ml" / "model")


@pytest.mark.parametrize("namespace", ["AWS/SageMaker", "a b", "ä", "x" * 256])
def test_a_namespace_that_cloudwatch_refuses_stops_the_start(namespace: str) -> None:
    with pytest.raises(StartError, match="TRIREME_EMF_NAMESPACE"):
        Settings.read({"TRIREME_EMF_NAMESPACE": namespace})
