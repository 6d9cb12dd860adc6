"""The interface through which :mod:`process_manager` acts on processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sm.server.supervisor.stub_monitor import StubCondition


class ProcessBackend(Protocol):
    """What the rules can do."""

    def spawn(self, name: str) -> int:
        """Start a child; its process id, which is also its group's."""

    def signal(self, pid: int, number: int) -> None:
        """To the child alone: it knows its own."""

    def kill(self, pid: int) -> None:
        """The child and its whole group, at once."""

    def ready(self, name: str) -> bool:
        """Whether the child answers. Bounded in time."""

    def failure(self, name: str) -> str:
        """A sentence if the child will never be ready, else nothing."""

    def stub_condition(self, pid: int) -> StubCondition:
        """How the processes of Triton's Python models are, as far as that is the supervisor's concern."""

    def dead_import(self, pid: int) -> str:
        """Why Triton, which is starting, will never be ready: a sentence about a process it waits for."""

    def leave_out_dead_import(self) -> bool:
        """Have Triton started without that model the next time; False if it must not, or cannot, be."""

    def replacement_wanted(self) -> str:
        """Why the control plane wants Triton started again, told once; else nothing."""

    def has_stubs(self) -> bool:
        """Whether Triton runs models in processes of their own, which can stall."""

    def answers_in_doubt(self) -> bool:
        """Whether a worker saw that the answers of the running Triton may be mixed up."""

    def put_answers_in_doubt(self) -> None:
        """Have no worker deliver an answer of the running Triton any more."""

    def oom_killed(self, patience: float) -> bool:
        """Whether the kernel killed for want of memory, so many seconds ago or more; told once."""

    def keep_answering(self) -> None:
        """Have the front end the connections that callers keep."""

    def publish(self, state: Mapping[str, Any]) -> None:
        """Let the control plane know."""

    def say(self, level: str, message: str) -> None:
        """Log."""
