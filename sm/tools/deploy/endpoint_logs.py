"""What the containers of an endpoint say, from CloudWatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from sm.errors import StartError
from sm.tools.deploy.account import Account
from sm.tools.deploy.aws import ServiceUnavailable

#: Streams that are read for the last lines: instances of an update that goes on, old and new.
STREAMS = 4
#: Seconds between two looks for new lines.
POLL_INTERVAL_S = 2.0
DOING = "read the logs"


def group(name: str) -> str:
    return f"/aws/sagemaker/Endpoints/{name}"


def last(account: Account, name: str, lines: int, since: float = 0.0) -> list[str]:
    """The newest ``lines`` of all instances, oldest first; none where there is no log yet.

    ``since`` is in seconds since 1970: what an endpoint of the same name said before that is no news.
    """
    found = account.describe(
        "logs",
        "describe_log_streams",
        DOING,
        logGroupName=group(name),
        orderBy="LastEventTime",
        descending=True,
        limit=STREAMS,
    )
    events: list[Any] = []
    for stream in (found or {}).get("logStreams", ()):
        page = account.describe(
            "logs",
            "get_log_events",
            DOING,
            logGroupName=group(name),
            logStreamName=stream["logStreamName"],
            startTime=int(since * 1000),
            limit=lines,
        )
        events += (page or {}).get("events", ())
    events.sort(key=lambda event: event["timestamp"])
    return [str(event["message"]).rstrip() for event in events[-lines:]]


class Follower:
    """Gives lines as they come. ``wait`` sleeps; it and the clock can be a test's."""

    def __init__(self, account: Account, name: str, wait: Callable[[float], None] = time.sleep) -> None:
        self._account, self._name, self._wait = account, name, wait
        self._from = 0
        self._seen: set[str] = set()

    def lines(self, since: float) -> Iterator[str]:
        """Endless. A network that is away for a moment is no end."""
        self._from = int(since * 1000)
        while True:
            try:
                yield from self._new()
            except ServiceUnavailable as error:
                self._account.progress.say(f"still trying: {error}")
            self._wait(POLL_INTERVAL_S)

    def _new(self) -> Iterator[str]:
        events = self._account.paginate(
            "logs",
            "filter_log_events",
            "events",
            DOING,
            logGroupName=group(self._name),
            startTime=self._from,
        )
        for event in events:
            if event["eventId"] not in self._seen:
                if event["timestamp"] > self._from:
                    # Lines of one moment may come in two answers, so only older ones are forgotten.
                    self._from = event["timestamp"]
                self._seen.add(event["eventId"])
                yield written(event)


def written(event: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(event["timestamp"] / 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ} {str(event['message']).rstrip()}"


def show(account: Account, name: str, lines: int, follow: bool) -> None:
    """Print the last lines, and with ``follow`` those that come, until interrupted."""
    began = time.time()
    found = last(account, name, lines)
    for line in found:
        account.results.say(line)
    if follow:
        for line in Follower(account, name).lines(began):
            account.results.say(line)
    elif not found:
        raise StartError(
            f"there are no logs of {name!r} in {account.region}: "
            "it has not started yet, or has another name ('sm status NAME')."
        )
