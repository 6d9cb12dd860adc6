"""CloudWatch alarms: those that undo an update, given or created, and those that watch an endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError
from sm.settings import EMF_NAMESPACE
from trireme_tools import documents

if TYPE_CHECKING:  # templates need no AWS, and so no boto3
    from trireme_tools.deploy.account import Account

#: The box's variables: write the metrics, and the endpoint's name with them.
EMF, ENDPOINT_NAME = "TRIREME_EMF", "TRIREME_ENDPOINT_NAME"
DOCUMENTS = documents.read(__file__, "alarms.yaml")
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
        values = {
            "name": name,
            "namespace": EMF_NAMESPACE,
            "dimensions": [{"Name": "Endpoint", "Value": environment.get(ENDPOINT_NAME, name)}],
            **asdict(self),
        }
        return list(documents.fill(DOCUMENTS["box"], values))


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
    kind = "errors" if milliseconds is None else "latency"
    values = {"name": name, "microseconds": 1000.0 * (milliseconds or 0)}
    alarm = documents.fill(DOCUMENTS[kind], values)
    create(account, [alarm])
    return str(alarm["AlarmName"])


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
    names = [f"{name}-{kind}" for kind in ("errors", "latency", "backlog", "no-capacity", *ALARM_SUFFIXES)]
    response: dict[str, Any] = {}
    with account.optional():
        response = account.call("cloudwatch", "describe_alarms", "look at the alarms", AlarmNames=names)
    return [dict(alarm) for alarm in response.get("MetricAlarms", ())]


def remove(account: Account, alarms: list[str]) -> None:
    account.remove("cloudwatch", "delete_alarms", "remove the alarms", AlarmNames=alarms)
