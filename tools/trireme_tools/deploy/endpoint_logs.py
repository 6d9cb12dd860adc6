"""Logs of an endpoint's containers, from CloudWatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from sm.errors import CommandError
from trireme_tools.aws import ServiceUnavailable
from trireme_tools.deploy.account import Account

#: Streams that are read for the last lines: old and new instances during an update.
MAX_STREAMS = 4
#: Seconds between two polls.
POLL_INTERVAL_S = 2.0
READ_LOGS = "read the logs"


def group_name(name: str) -> str:
    return f"/aws/sagemaker/Endpoints/{name}"


def component_group(name: str) -> str:
    return f"/aws/sagemaker/InferenceComponents/{name}"


def last_lines(
    account: Account, name: str, lines: int, since: float = 0.0, group: str | None = None
) -> list[str]:
    """Return the newest ``lines`` of all instances, oldest first; none if there is no log yet.

    ``since`` is in seconds since 1970: older lines belong to an earlier endpoint of the same name. ``group``
    is the log group, the endpoint's by default.
    """
    group = group or group_name(name)
    response = account.describe(
        "logs",
        "describe_log_streams",
        READ_LOGS,
        logGroupName=group,
        orderBy="LastEventTime",
        descending=True,
        limit=MAX_STREAMS,
    )
    events: list[Any] = []
    for stream in (response or {}).get("logStreams", ()):
        page = account.describe(
            "logs",
            "get_log_events",
            READ_LOGS,
            logGroupName=group,
            logStreamName=stream["logStreamName"],
            startTime=int(since * 1000),
            limit=lines,
        )
        events += (page or {}).get("events", ())
    events.sort(key=lambda event: event["timestamp"])
    return [str(event["message"]).rstrip() for event in events[-lines:]]


def follow_lines(
    account: Account, name: str, since: float, wait: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield lines as they arrive, for ever, also after a short outage of the network.

    ``since`` is in seconds since 1970. Tests replace ``wait``, which sleeps.
    """
    start, shown = int(since * 1000), set[str]()
    while True:
        try:
            for event in account.paginate(
                "logs",
                "filter_log_events",
                "events",
                READ_LOGS,
                logGroupName=group_name(name),
                startTime=start,
            ):
                if event["eventId"] not in shown:
                    # Lines of the same moment may come in two answers, so only older ones are forgotten.
                    start = max(start, event["timestamp"])
                    shown.add(event["eventId"])
                    yield format_event(event)
        except ServiceUnavailable as error:
            account.progress.say(f"still trying: {error}")
        wait(POLL_INTERVAL_S)


def format_event(event: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(event["timestamp"] / 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ} {str(event['message']).rstrip()}"


def show(account: Account, name: str, lines: int, follow: bool) -> None:
    """Print the last lines and, with ``follow``, new ones until interrupted."""
    began = time.time()
    recent = last_lines(account, name, lines)
    for line in recent:
        account.results.say(line)
    if follow:
        for line in follow_lines(account, name, began):
            account.results.say(line)
    elif not recent:
        raise CommandError(
            f"there are no logs of {name!r} in {account.region}: "
            "it has not started yet, or has another name ('sm status NAME')."
        )
