"""A plan's arguments for SageMaker: where the models are, how long a start may take, its alarms."""

from __future__ import annotations

import argparse

import pytest

from sm.settings import EMF_NAMESPACE, Settings
from trireme_extensions.observe.embedded_metrics import METRICS
from trireme_tools.deploy import deploy_arguments, model_data
from trireme_tools.deploy.alarms import ALARM_SUFFIXES, BoxAlarms

ARCHIVE, PREFIX = "s3://ours/ships/model.tar.gz", "s3://ours/ships/"


def test_a_shadow_with_files_has_no_archive_of_production() -> None:
    container = {"Image": "image", "ModelDataUrl": ARCHIVE, "Environment": {"A": "1"}}
    replaced = model_data.replace(container, PREFIX)
    assert "ModelDataUrl" not in replaced and model_data.url_of(replaced) == PREFIX
    assert replaced["Environment"] == {"A": "1"}


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, None), (1, 660), (5 * 10**9, 900), (10**9 + 1, 720), (10**12, 3600)]
)
def test_a_start_may_take_as_long_as_the_models_are_large(size: int, seconds: int | None) -> None:
    assert model_data.start_timeout(size) == seconds


def test_the_alarms_read_the_metrics_that_the_box_writes() -> None:
    box_alarms = BoxAlarms(2.0, 750.0)
    box = Settings.read(box_alarms.environment("ships"))
    rate, p99 = box_alarms.alarms("ships", box_alarms.environment("ships"))
    assert box.emf == "on"
    common = {"Namespace": EMF_NAMESPACE, "Dimensions": [{"Name": "Endpoint", "Value": box.endpoint_name}]}
    metrics = [query["MetricStat"]["Metric"] for query in rate["Metrics"] if "MetricStat" in query]
    metrics.append({name: p99[name] for name in ("Namespace", "Dimensions", "MetricName")})
    assert metrics == [{**common, "MetricName": name} for name in ("Errors", "Requests", "Latency")]
    assert {metric["MetricName"] for metric in metrics} == {metric["Name"] for metric in METRICS}
    assert (rate["Threshold"], p99["Threshold"]) == (2.0, 750.0)
    assert [alarm["AlarmName"] for alarm in (rate, p99)] == [f"ships-{ending}" for ending in ALARM_SUFFIXES]


@pytest.mark.parametrize("text", ["1", "0:100", "101:100", "1:0", "a:b", "nan:1", "1:nan", "1:inf", ""])
def test_invalid_limits_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="MS"):
        deploy_arguments.alarm_limits(text)
    assert deploy_arguments.alarm_limits("0.5:2000") == BoxAlarms(0.5, 2000.0)
