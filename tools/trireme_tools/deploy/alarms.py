"""CloudWatch alarms: those that undo an update, given or created, and those that watch an endpoint."""

from __future__ import annotations

import re
from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy import aws, resource_names
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.box_alarms import ALARM_SUFFIXES

CREATED_ALARM = re.compile(r"errors|latency:(\d+)")


def choose(account: Account, name: str, requested: list[str]) -> list[str]:
    """Return the alarms' names. ``errors`` and ``latency:MS`` are created, others must exist."""
    names = []
    for alarm in requested:
        if match := CREATED_ALARM.fullmatch(alarm):
            names.append(_create(account, name, int(match[1]) if match[1] else None))
        else:
            _check_exists(account, alarm)
            names.append(alarm)
    return names


def _create(account: Account, name: str, milliseconds: int | None) -> str:
    """Create the alarm, or replace the one of its name."""
    alarm = f"{name}-errors" if milliseconds is None else f"{name}-latency"
    metric: dict[str, Any] = {"MetricName": "Invocation5XXErrors", "Statistic": "Sum", "Threshold": 0.0}
    if milliseconds is not None:  # SageMaker measures microseconds
        metric = {
            "MetricName": "ModelLatency",
            "ExtendedStatistic": "p99",
            "Threshold": milliseconds * 1000.0,
        }
    account.create(
        "cloudwatch",
        "put_metric_alarm",
        f"make alarm {alarm}",
        AlarmName=alarm,
        Namespace="AWS/SageMaker",
        Dimensions=[
            {"Name": "EndpointName", "Value": name},
            {"Name": "VariantName", "Value": resource_names.VARIANT},
        ],
        Period=60,
        EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
        Tags=aws.to_tags({resource_names.TAG: name}),
        **metric,
    )
    return alarm


def create(account: Account, requested: list[dict[str, Any]]) -> None:
    """Create alarms, or replace those of their names."""
    for alarm in requested:
        account.create("cloudwatch", "put_metric_alarm", f"make alarm {alarm['AlarmName']}", **alarm)


def _check_exists(account: Account, alarm: str) -> None:
    response = account.call("cloudwatch", "describe_alarms", f"look at alarm {alarm}", AlarmNames=[alarm])
    if not response.get("MetricAlarms") and not response.get("CompositeAlarms"):
        raise CommandError(
            f"there is no alarm {alarm!r} in {account.region}; make it, or take 'errors' or 'latency:MS'."
        )


def find_own(account: Account, name: str) -> list[dict[str, Any]]:
    """Return the alarms that were created for this deployment; none without the permission to list them."""
    names = [f"{name}-{kind}" for kind in ("errors", "latency", "backlog", *ALARM_SUFFIXES)]
    try:
        response = account.call("cloudwatch", "describe_alarms", "look at the alarms", AlarmNames=names)
    except aws.ServiceUnavailable:
        raise
    except CommandError as error:
        account.progress.say(f"not checked: {error}")
        return []
    return [dict(alarm) for alarm in response.get("MetricAlarms", ())]


def remove(account: Account, alarms: list[str]) -> None:
    account.remove("cloudwatch", "delete_alarms", "remove the alarms", AlarmNames=alarms)
