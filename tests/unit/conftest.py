"""A unit test starts no process and opens no connection; one that does fails here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy.testing  # noqa: F401  (runs lscpu when it is first imported)
import pytest

#: Python's audit events of a process that is started and a socket that is connected or bound.
FORBIDDEN = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
}


class ForbiddenEventRecorder:
    """Records forbidden events while a test runs. An audit hook cannot be removed, so one serves all tests."""

    def __init__(self) -> None:
        self.events: list[str] | None = None
        sys.addaudithook(self.record)

    def record(self, event: str, args: tuple[Any, ...]) -> None:
        if self.events is not None and event in FORBIDDEN:
            self.events.append(f"{event}{args[:2]}")


@pytest.fixture(scope="session")
def forbidden_event_recorder() -> ForbiddenEventRecorder:
    return ForbiddenEventRecorder()


@pytest.fixture(autouse=True)
def fail_on_processes_and_connections(forbidden_event_recorder: ForbiddenEventRecorder) -> Iterator[None]:
    events: list[str] = []
    forbidden_event_recorder.events = events
    yield
    forbidden_event_recorder.events = None
    assert not events, f"a unit test may not do this: {events[0]}. Move it to tests/integration."
