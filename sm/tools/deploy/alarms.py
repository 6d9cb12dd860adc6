"""CloudWatch alarms that undo an update: those of your choice, or two that we make."""

from __future__ import annotations

import re
from typing import Any

from sm.errors import StartError
from sm.tools.deploy import aws, resource_names
from sm.tools.deploy.account import Account

OWN = re.compile(r"errors|latency:(\d+)")


def chosen(account: Account, name: str, wanted: list[str]) -> list[str]:
    """The alarms' names. ``errors`` and ``latency:MS`` are made, any other must be there."""
    made = []
    for each in wanted:
        if found := OWN.fullmatch(each):
            made.append(_make(account, name, int(found[1]) if found[1] else None))
        else:
            _check(account, each)
            made.append(each)
    return made


def _make(account: Account, name: str, milliseconds: int | None) -> str:
    """Put the alarm; one of the same name becomes this."""
    alarm = f"{name}-errors" if milliseconds is None else f"{name}-latency"
    what: dict[str, Any] = {"MetricName": "Invocation5XXErrors", "Statistic": "Sum", "Threshold": 0.0}
    if milliseconds is not None:  # SageMaker measures microseconds
        what = {"MetricName": "ModelLatency", "ExtendedStatistic": "p99", "Threshold": milliseconds * 1000.0}
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
        Tags=aws.named({resource_names.TAG: name}),
        **what,
    )
    return alarm


def _check(account: Account, alarm: str) -> None:
    found = account.call("cloudwatch", "describe_alarms", f"look at alarm {alarm}", AlarmNames=[alarm])
    if not found.get("MetricAlarms") and not found.get("CompositeAlarms"):
        raise StartError(
            f"there is no alarm {alarm!r} in {account.region}; make it, or take 'errors' or 'latency:MS'."
        )


def own(account: Account, name: str) -> list[dict[str, Any]]:
    """Those that were made for this deployment. Who may not look has made none."""
    wanted = [f"{name}-{kind}" for kind in ("errors", "latency", "backlog")]
    try:
        found = account.call("cloudwatch", "describe_alarms", "look at the alarms", AlarmNames=wanted)
    except aws.ServiceUnavailable:
        raise
    except StartError as error:
        account.progress.say(f"not checked: {error}")
        return []
    return [dict(alarm) for alarm in found.get("MetricAlarms", ())]


def remove(account: Account, alarms: list[str]) -> None:
    account.remove("cloudwatch", "delete_alarms", "remove the alarms", AlarmNames=alarms)
