"""``sm deploy --alarms``: the box writes metrics, which CloudWatch's alarms and ``sm status`` read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.support.deploy_account import FakeAccount


@pytest.mark.exhaustive
def test_alarms_watch_the_boxs_metrics_and_are_deleted_with_the_endpoint(cloud: FakeAccount) -> None:
    done = cloud.deploy("--alarms", "2:750")
    assert done.code == 0, done.err
    container = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]
    assert container["Environment"] == {"TRIREME_EMF": "on", "TRIREME_ENDPOINT_NAME": "ships"}
    cloudwatch = cloud.client("cloudwatch")
    dimensions = [{"Name": "Endpoint", "Value": "ships"}]
    alarms = {alarm["AlarmName"]: alarm for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
    assert alarms.keys() == {"ships-error-rate", "ships-p99"}
    # tests/unit/tools/deploy/test_alarms.py has what they read.
    assert [alarms[f"ships-{kind}"]["Threshold"] for kind in ("p99", "error-rate")] == [750.0, 2.0]
    # The numbers that CloudWatch reads from a line of the box's log.
    moment = datetime.now(timezone.utc) - timedelta(minutes=9)
    cloudwatch.put_metric_data(
        Namespace="Trireme",
        MetricData=[
            {"MetricName": "Requests", "Value": 321, "Timestamp": moment, "Dimensions": dimensions},
            {"MetricName": "Latency", "Value": 12.5, "Timestamp": moment, "Dimensions": dimensions},
        ],
    )
    status = cloud.sm("status", "ships").out
    assert "ships-error-rate: " in status and "ships-p99: " in status
    assert "Trireme/Requests, last hour" in status and "321" in status and "12.5 ms" in status
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
