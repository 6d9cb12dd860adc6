"""A unit test starts no process, opens no connection and leaves no thread behind; one that does fails here."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy.testing  # noqa: F401  (runs lscpu when it is first imported)
import pytest

from sm.polling import stop_all

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
#: Seconds for what a thread of a test is doing when the test ends.
THREAD_TIMEOUT_S = 10.0


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


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, also of one that is about to start, which is listed and cannot be joined."""
    until = time.monotonic() + THREAD_TIMEOUT_S
    while time.monotonic() < until:
        with contextlib.suppress(RuntimeError):
            thread.join(THREAD_TIMEOUT_S)
            return
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    """End the test's polls, as a process does. Otherwise a thread may fail in another test, and fail that."""
    before = set(threading.enumerate())
    yield
    stop_all(THREAD_TIMEOUT_S)
    left = [thread for thread in threading.enumerate() if thread.daemon and thread not in before]
    for thread in left:
        join(thread)
    assert not [thread for thread in left if thread.is_alive()]
