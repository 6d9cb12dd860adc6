"""The interface through which :mod:`process_manager` acts on processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class ProcessBackend(Protocol):
    """The actions and queries of the rules."""

    def spawn(self, name: str) -> int:
        """Start a child. Returns its process id, which is also its group's."""

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to the child alone; it stops its own children."""

    def kill(self, pid: int) -> None:
        """Kill the child and its whole group at once."""

    def ready(self, name: str) -> bool:
        """True if the child serves. Bounded in time."""

    def failure(self, name: str) -> str:
        """Return a sentence if the child will never be ready, else an empty text."""

    def lost_stubs(self, pid: int) -> list[str]:
        """Take out the models that lost a process of the Triton ``pid``; return a sentence for each."""

    def dead_import(self, pid: int) -> str:
        """Return a sentence if a starting Triton will never be ready, because it waits for a dead process."""

    def exclude_dead_import(self) -> bool:
        """Exclude that model from Triton's next start; False if that is not allowed or not possible."""

    def replacement_wanted(self) -> str:
        """Return the control plane's reason to start Triton again, once; else an empty text."""

    def oom_killed(self, min_age: float) -> bool:
        """True if the kernel killed a process for lack of memory at least ``min_age`` seconds ago; each kill
        is reported once.
        """

    def disable_keepalive(self) -> None:
        """Make the front answer with ``Connection: close``, so that callers reconnect."""

    def publish(self, state: Mapping[str, Any]) -> None:
        """Write the state for the control plane."""

    def log(self, level: str, message: str) -> None:
        """Log a line."""
