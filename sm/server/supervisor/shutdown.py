"""The stages of a stop: a signal and a time for each child."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stage:
    """Send ``signal`` to the child ``name``; kill it ``seconds`` later, or at the time ``latest``."""

    name: str
    signal: int
    seconds: float
    latest: float
    signalled: bool = False
    killed: bool = False

    def is_over(self, entered: float, now: float) -> bool:
        return now >= min(entered + self.seconds, self.latest)


@dataclass
class Shutdown:
    """The stages that are left. Times are seconds on the supervisor's clock."""

    stages: list[Stage]
    #: The box's exit code.
    code: int
    #: When the current stage began.
    entered: float
    #: The front serves as before until this time.
    serve_until: float
    front_serves: bool = True
    forced: bool = False

    def stage(self, now: float) -> Stage | None:
        """Return the current stage; None while the front still serves, and at the end."""
        self.front_serves = now < self.serve_until
        return None if self.front_serves or not self.stages else self.stages[0]

    def next(self, now: float) -> None:
        self.stages.pop(0)
        self.entered = now

    def force(self, code: int) -> None:
        """Kill at once from now on."""
        self.forced, self.front_serves, self.code = True, False, code
