"""``sm deploy --alarms``: the box writes metrics, CloudWatch's alarms read them, and so does ``sm status``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.support.deploy_account import Cloud


@pytest.mark.exhaustive
def test_alarms_watch_what_the_box_writes_and_go_with_the_endpoint(cloud: Cloud) -> None:
    done = cloud.deploy("--alarms", "2:750")
    assert done.code == 0, done.err
    container = cloud.proxy.bodies["CreateModel"]["PrimaryContainer"]
    assert container["Environment"] == {"TRIREME_EMF": "on", "TRIREME_ENDPOINT_NAME": "ships"}
    cloudwatch = cloud.client("cloudwatch")
    where = [{"Name": "Endpoint", "Value": "ships"}]
    found = {alarm["AlarmName"]: alarm for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
    assert found.keys() == {"ships-error-rate", "ships-p99"}
    p99, rate = found["ships-p99"], found["ships-error-rate"]
    assert (p99["Namespace"], p99["MetricName"], p99["Dimensions"]) == ("Trireme", "Latency", where)
    assert (p99["ExtendedStatistic"], p99["Threshold"]) == ("p99", 750.0)
    assert rate["Threshold"] == 2.0
    queries = {query["Id"]: query for query in rate["Metrics"]}
    assert queries["rate"]["Expression"] == "100 * errors / requests"
    for name in ("Errors", "Requests"):
        metric = queries[name.lower()]["MetricStat"]["Metric"]
        assert (metric["Namespace"], metric["MetricName"], metric["Dimensions"]) == ("Trireme", name, where)
    # What CloudWatch makes of a line of the box.
    moment = datetime.now(timezone.utc) - timedelta(minutes=9)
    cloudwatch.put_metric_data(
        Namespace="Trireme",
        MetricData=[
            {"MetricName": "Requests", "Value": 321, "Timestamp": moment, "Dimensions": where},
            {"MetricName": "Latency", "Value": 12.5, "Timestamp": moment, "Dimensions": where},
        ],
    )
    shown = cloud.sm("status", "ships").out
    assert "ships-error-rate: " in shown and "ships-p99: " in shown
    assert "Trireme/Requests, last hour" in shown and "321" in shown and "12.5 ms" in shown
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
