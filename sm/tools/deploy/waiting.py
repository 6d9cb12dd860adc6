"""Wait until an endpoint is steady, with one live line: state, time and the last line of its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sm.errors import StartError
from sm.tools.deploy import endpoint_logs
from sm.tools.deploy.account import Account
from sm.tools.deploy.aws import ServiceUnavailable

#: States that end by themselves.
PASSING = {"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"}
#: Seconds between two polls: short at first, for endpoints that are ready already.
FIRST_POLL_INTERVAL_S, POLL_INTERVAL_S = 0.5, 5.0
#: Seconds between two lines if they cannot be overwritten.
PLAIN_LINE_INTERVAL_S = 30.0
#: Seconds for which AWS may be away: the endpoint goes on starting.
MAX_AWS_OUTAGE_S = 300.0
LINE_COLUMNS = 100


@dataclass
class Clock:
    """The time, and a way to sleep."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class Waiter:
    """Polls an endpoint until it is steady."""

    def __init__(self, account: Account, clock: Clock | None = None) -> None:
        self._account, self._clock = account, clock or Clock()
        self._last_status, self._shown_at = "", 0.0

    def wait(self, name: str) -> dict[str, Any] | None:
        """Return the endpoint in a lasting state; None if it does not exist."""
        began, since = self._clock.now(), time.time()
        answered, pause, has_progress = began, FIRST_POLL_INTERVAL_S, False
        while True:
            try:
                endpoint = self._poll(name)
                answered = self._clock.now()
                if endpoint is None or endpoint["EndpointStatus"] not in PASSING:
                    self._end(has_progress, endpoint, began)
                    return endpoint
                self._show(
                    f"{endpoint['EndpointStatus']} {self._clock.now() - began:.0f} s{self._line(name, since)}"
                )
            except ServiceUnavailable as error:
                if self._clock.now() - answered > MAX_AWS_OUTAGE_S:
                    raise
                self._show(f"still trying: {error}")
            has_progress = True
            self._clock.wait(pause)
            pause = min(pause * 2, POLL_INTERVAL_S)

    def _poll(self, name: str) -> dict[str, Any] | None:
        return self._account.describe(
            "sagemaker", "describe_endpoint", f"look at endpoint {name}", EndpointName=name
        )

    def _line(self, name: str, since: float) -> str:
        try:
            recent = endpoint_logs.last(self._account, name, 1, since)
        except ServiceUnavailable:
            return ""
        except StartError:  # who may deploy need not be allowed to read logs
            return ""
        return f"  {recent[0]}" if recent else ""

    def _show(self, line: str) -> None:
        progress, now = self._account.progress, self._clock.now()
        if progress.live:
            print(f"\r\x1b[2K{line[:LINE_COLUMNS]}", end="", file=progress.stream, flush=True)
        elif line.split()[0] != self._last_status or now - self._shown_at >= PLAIN_LINE_INTERVAL_S:
            progress.say(line)
            self._last_status, self._shown_at = line.split()[0], now

    def _end(self, has_progress: bool, endpoint: dict[str, Any] | None, began: float) -> None:
        if not has_progress:
            return
        if self._account.progress.live:
            print("\r\x1b[2K", end="", file=self._account.progress.stream)
        state = endpoint["EndpointStatus"] if endpoint else "gone"
        self._account.progress.say(f"{state} after {self._clock.now() - began:.0f} s")
