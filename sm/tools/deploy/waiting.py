"""Until an endpoint has settled: one live line with its state, the time and the last line of its log."""

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
#: Seconds between two looks: short at first, for endpoints that are there already.
FIRST_PAUSE, PAUSE = 0.5, 5.0
#: Seconds between two lines where they cannot be written over each other.
PLAIN = 30.0
#: Seconds for which AWS may be away: the endpoint starts without us, too.
MAX_AWS_OUTAGE_S = 300.0
WIDTH = 100


@dataclass
class Clock:
    """Time, and how to let it pass."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class Waiter:
    """Looks at an endpoint until it has settled."""

    def __init__(self, account: Account, clock: Clock | None = None) -> None:
        self._account, self._clock = account, clock or Clock()
        self._said, self._shown = "", 0.0

    def wait(self, name: str) -> dict[str, Any] | None:
        """The endpoint when its state does not pass by itself; None if there is none (any more)."""
        began, since = self._clock.now(), time.time()
        answered, pause, told = began, FIRST_PAUSE, False
        while True:
            try:
                found = self._poll(name)
                answered = self._clock.now()
                if found is None or found["EndpointStatus"] not in PASSING:
                    self._end(told, found, began)
                    return found
                self._show(
                    f"{found['EndpointStatus']} {self._clock.now() - began:.0f} s{self._line(name, since)}"
                )
            except ServiceUnavailable as error:
                if self._clock.now() - answered > MAX_AWS_OUTAGE_S:
                    raise
                self._show(f"still trying: {error}")
            told = True
            self._clock.wait(pause)
            pause = min(pause * 2, PAUSE)

    def _poll(self, name: str) -> dict[str, Any] | None:
        return self._account.describe(
            "sagemaker", "describe_endpoint", f"look at endpoint {name}", EndpointName=name
        )

    def _line(self, name: str, since: float) -> str:
        try:
            found = endpoint_logs.last(self._account, name, 1, since)
        except ServiceUnavailable:
            return ""
        except StartError:  # who may deploy need not be allowed to read logs
            return ""
        return f"  {found[0]}" if found else ""

    def _show(self, line: str) -> None:
        progress, now = self._account.progress, self._clock.now()
        if progress.live:
            print(f"\r\x1b[2K{line[:WIDTH]}", end="", file=progress.stream, flush=True)
        elif line.split()[0] != self._said or now - self._shown >= PLAIN:
            progress.say(line)
            self._said, self._shown = line.split()[0], now

    def _end(self, told: bool, found: dict[str, Any] | None, began: float) -> None:
        if not told:
            return
        if self._account.progress.live:
            print("\r\x1b[2K", end="", file=self._account.progress.stream)
        state = found["EndpointStatus"] if found else "gone"
        self._account.progress.say(f"{state} after {self._clock.now() - began:.0f} s")
