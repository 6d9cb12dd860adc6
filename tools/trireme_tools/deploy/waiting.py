"""Wait until an endpoint is steady, and explain from SageMaker's own reasons why one did not start."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

from sm.errors import CommandError
from trireme_tools import documents
from trireme_tools.aws import ServiceUnavailable
from trireme_tools.deploy import endpoint_logs
from trireme_tools.deploy.account import Account

ADVICE = documents.read(__file__, "advice.yaml")


class EndpointFailed(CommandError):
    """The endpoint does not serve what it should."""


def advice_for(reason: str) -> str:
    return str(next(row["advice"] for row in ADVICE if re.search(row["reason"], reason, re.IGNORECASE)))


def make_failure(name: str, what: str, reason: str, lines: list[str]) -> EndpointFailed:
    """Return the error. ``what`` is, for example, "could not be created"; ``lines`` are the
    containers' last.
    """
    log_text = "".join(f"  | {line}\n" for line in lines)
    logs = f"the last lines of its log:\n{log_text}" if lines else "its container has said nothing.\n"
    cause = reason.rstrip(".") or "SageMaker gives no reason"
    return EndpointFailed(
        f"endpoint {name!r} {what}: {cause}.\n{logs}{advice_for(reason).replace('NAME', name)}"
    )


#: States that end by themselves.
PASSING = {"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"}
#: Seconds between two polls: short at first, for endpoints that are ready already.
FIRST_POLL_INTERVAL_S, POLL_INTERVAL_S = 0.5, 5.0
#: Seconds between two lines where there is no terminal.
PLAIN_LINE_INTERVAL_S = 30.0
#: Seconds for which AWS may be away: the endpoint goes on starting.
MAX_AWS_OUTAGE_S = 300.0


class Waiter:
    """Polls an endpoint until it is steady. Tests have their own time: ``now`` and ``sleep``."""

    kind = "endpoint"
    passing: Collection[str] = PASSING

    def __init__(
        self,
        account: Account,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._account, self._now, self._sleep = account, now, sleep
        #: The endpoint's status, and the last line of its log.
        self._status = self._detail = ""
        self._last_status, self._shown_at = "", 0.0

    def wait(self, name: str) -> dict[str, Any] | None:
        """Return the endpoint in a lasting state; None if it does not exist."""
        began, since = self._now(), time.time()
        last_answer, pause = began, FIRST_POLL_INTERVAL_S
        with ExitStack() as status_line:
            while True:
                try:
                    endpoint = self._poll(name)
                    last_answer = self._now()
                    if endpoint is None or endpoint["EndpointStatus"] not in self.passing:
                        break
                    self._status, self._detail = endpoint["EndpointStatus"], self._last_line(name, since)
                except ServiceUnavailable as error:
                    if self._now() - last_answer > MAX_AWS_OUTAGE_S:
                        raise
                    self._status, self._detail = "still trying", str(error)
                if pause == FIRST_POLL_INTERVAL_S:
                    status = self._account.progress.status(f"{self.kind} {name}", lambda: self._line(began))
                    status_line.enter_context(status)
                self._say(began)
                self._sleep(pause)
                pause = min(pause * 2, POLL_INTERVAL_S)
        if self._status:
            state = endpoint["EndpointStatus"] if endpoint else "gone"
            self._account.progress.say(f"{state} after {self._now() - began:.0f} s")
        return endpoint

    def _poll(self, name: str) -> dict[str, Any] | None:
        return self._account.describe(
            "sagemaker", "describe_endpoint", f"look at endpoint {name}", EndpointName=name
        )

    def _group(self, name: str) -> str:
        return endpoint_logs.group_name(name)

    def _last_line(self, name: str, since: float) -> str:
        try:
            recent = endpoint_logs.last_lines(self._account, name, 1, since, self._group(name))
        except (ServiceUnavailable, CommandError):  # who may deploy need not be allowed to read logs
            return ""
        return recent[0] if recent else ""

    def _line(self, began: float) -> str:
        return f"{self._status} {self._now() - began:.0f} s  {self._detail}".rstrip()

    def _say(self, began: float) -> None:
        """Write a line for each state, and now and then, where there is no terminal."""
        progress, now = self._account.progress, self._now()
        is_due = self._status != self._last_status or now - self._shown_at >= PLAIN_LINE_INTERVAL_S
        if not progress.live and is_due:
            progress.say(self._line(began))
            self._last_status, self._shown_at = self._status, now
