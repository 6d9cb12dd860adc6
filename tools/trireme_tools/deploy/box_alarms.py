"""CloudWatch alarms on the box's own metrics, which watch an endpoint all the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm.settings import Settings
from trireme_tools.deploy import aws, resource_names

#: The box's variables: write the metrics, and the endpoint's name with them.
EMF, ENDPOINT_NAME, NAMESPACE = "TRIREME_EMF", "TRIREME_ENDPOINT_NAME", "TRIREME_EMF_NAMESPACE"
#: Seconds of a point. An alarm goes off if 3 of the last 5 points are over the limit: metrics that CloudWatch
#: reads from a log sometimes come late, so one point alone decides nothing.
PERIOD_S, ALARM_POINTS, EVALUATED_POINTS = 60, 3, 5
#: The endings of the alarms' names.
ALARM_SUFFIXES = ("error-rate", "p99")


@dataclass(frozen=True)
class BoxAlarms:
    """The limits: errors (5xx) in percent of the requests, and the 99th percentile of the time in ms."""

    error_percent: float = 1.0
    p99_ms: float = 1000.0

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables with which the box writes what the alarms read."""
        return {EMF: "on", ENDPOINT_NAME: name}

    def alarms(self, name: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the arguments of PutMetricAlarm; ``environment`` is the box's."""
        namespace = environment.get(NAMESPACE) or Settings().emf_namespace
        endpoint = environment.get(ENDPOINT_NAME, name)
        source = {
            "Namespace": namespace,
            "Dimensions": [{"Name": "Endpoint", "Value": endpoint}],
        }
        rate: list[dict[str, Any]] = [
            {
                "Id": "rate",
                "Expression": "100 * errors / requests",
                "Label": "errors in percent",
                "ReturnData": True,
            }
        ]
        for metric in ("Errors", "Requests"):
            statistic = {"Metric": {**source, "MetricName": metric}, "Period": PERIOD_S, "Stat": "Sum"}
            rate.append({"Id": metric.lower(), "MetricStat": statistic, "ReturnData": False})
        common = {
            "EvaluationPeriods": EVALUATED_POINTS,
            "DatapointsToAlarm": ALARM_POINTS,
            "ComparisonOperator": "GreaterThanThreshold",
            # Without requests nothing is wrong.
            "TreatMissingData": "notBreaching",
            "Tags": aws.to_tags({resource_names.TAG: name}),
        }
        latency = {"MetricName": "Latency", "ExtendedStatistic": "p99", "Period": PERIOD_S}
        return [
            {
                "AlarmName": f"{name}-error-rate",
                "AlarmDescription": "5xx in percent of the requests, as the box counts them",
                "Metrics": rate,
                "Threshold": self.error_percent,
                **common,
            },
            {
                "AlarmName": f"{name}-p99",
                "AlarmDescription": "the 99th percentile of a request's time in the box, in milliseconds",
                **source,
                **latency,
                "Threshold": self.p99_ms,
                **common,
            },
        ]
