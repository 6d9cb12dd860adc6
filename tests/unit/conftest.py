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


@pytest.fixture(scope="session")
def forbidden_events() -> list[str]:
    """The forbidden events so far. An audit hook cannot be removed, so one serves all tests."""
    events: list[str] = []

    def record(event: str, args: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            events.append(f"{event}{args[:2]}")

    sys.addaudithook(record)
    return events


@pytest.fixture(autouse=True)
def fail_on_processes_and_connections(forbidden_events: list[str]) -> Iterator[None]:
    forbidden_events.clear()
    yield
    assert not forbidden_events, (
        f"a unit test may not do this: {forbidden_events[0]}. Move it to tests/integration."
    )
