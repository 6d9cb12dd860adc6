"""The supervisor's record of one child: state, back-off and restart limit. Touches no process."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

#: Seconds within which deaths count against the restart limit.
RESTART_WINDOW_S = 300.0
#: Seconds before a restart: the first, and the longest.
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
#: Seconds between two probes of a child that is starting.
PROBE_INTERVAL_S = 0.1

WAITING, STARTING, READY, RESTARTING, STOPPED = "waiting", "starting", "ready", "restarting", "stopped"


@dataclass
class Child:
    """A process of the box. Times are seconds on the supervisor's clock."""

    name: str
    state: str = WAITING
    pid: int | None = None
    restarts: int = 0
    #: When it was last started.
    since: float = 0.0
    #: Do not start or probe it before this time.
    not_before: float = 0.0
    ever_ready: bool = False
    #: True if the supervisor ends it, so that its exit is not counted.
    expected_exit: bool = False
    #: The times of its deaths within the window.
    deaths: list[float] = field(default_factory=list)

    def mark_started(self, pid: int, now: float) -> None:
        self.pid, self.since, self.not_before = pid, now, now
        self.state = RESTARTING if self.state == RESTARTING else STARTING

    def mark_ready(self) -> None:
        self.state, self.ever_ready = READY, True

    def mark_unready(self, now: float) -> None:
        """Record that a probe found it not ready."""
        self.not_before = now + PROBE_INTERVAL_S

    def mark_exited(self, now: float) -> None:
        """Record its exit; it is started again after the back-off."""
        self.pid = None
        self.state = RESTARTING if self.ever_ready or not self.expected_exit else WAITING
        if self.expected_exit:
            self.expected_exit = False
            return
        self.restarts += 1
        self.deaths = [death for death in self.deaths if death > now - RESTART_WINDOW_S] + [now]
        self.not_before = now + min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(len(self.deaths) - 1, 10))

    def mark_stopped(self) -> None:
        self.pid, self.state = None, STOPPED

    def restart_limit_reached(self, max_restarts: int) -> bool:
        """True if it died more than ``max_restarts`` times within the window."""
        return len(self.deaths) > max_restarts

    def overdue(self, now: float, limit: float) -> bool:
        """True if it has been starting for more than ``limit`` seconds."""
        return self.pid is not None and self.state != READY and now > self.since + limit


def exit_code(status: int) -> int:
    """Translate a child's exit (negative: a signal) to the box's exit code, which is never 0."""
    return 128 - status if status < 0 else status or 1


def describe_exit(status: int) -> str:
    """Describe a child's exit in words."""
    if status >= 0:
        return f"exit code {status}"
    return f"signal {-status} ({signal.Signals(-status).name})"
