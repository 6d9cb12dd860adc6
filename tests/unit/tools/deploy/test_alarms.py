"""The CloudWatch alarms of a deployed box: which metrics they read, and their limits."""

from __future__ import annotations

import argparse

import pytest

from sm.control.embedded_metrics import METRICS
from sm.settings import EMF_NAMESPACE, Settings
from trireme_tools.deploy import deploy_arguments
from trireme_tools.deploy.alarms import ALARM_SUFFIXES, BoxAlarms


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
