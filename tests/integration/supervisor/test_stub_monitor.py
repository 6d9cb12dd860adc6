"""The children of another process, as real processes: dead, stopped, and found when they are new."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sm.server.supervisor.stub_monitor import StubCondition, StubMonitor
from tests.support.boxes import wait_until

#: Starts a child for each line it reads, tells its process id, and never asks how it ended: Python would, of one
#: that nothing refers to any more.
PARENT = """
import subprocess, sys
kept = []
for _ in sys.stdin:
    kept.append(subprocess.Popen(["sleep", "60"]))
    print(kept[-1].pid, flush=True)
"""


class Parent:
    """A process in Triton's place."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children: list[int] = []

    def start_child(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.children.append(int(self.process.stdout.readline()))
        return self.children[-1]

    def end(self) -> None:
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def parent() -> Iterator[Parent]:
    started = Parent()
    yield started
    started.end()


def becomes(monitor: StubMonitor, condition: StubCondition) -> bool:
    return bool(wait_until(lambda: monitor.poll() is condition, description=f"{condition}"))


def test_a_dead_child_that_nobody_waited_for_is_seen(parent: Parent) -> None:
    child = parent.start_child()
    monitor = StubMonitor(parent.process.pid)
    assert monitor.poll() is StubCondition.HEALTHY
    os.kill(child, signal.SIGKILL)
    assert becomes(monitor, StubCondition.DEAD)


def test_a_stopped_child_is_seen_and_so_is_that_it_goes_on(parent: Parent) -> None:
    child = parent.start_child()
    monitor = StubMonitor(parent.process.pid)
    os.kill(child, signal.SIGSTOP)
    assert becomes(monitor, StubCondition.STOPPED)
    os.kill(child, signal.SIGCONT)
    assert becomes(monitor, StubCondition.HEALTHY)


def test_a_stopped_child_outweighs_a_dead_one(parent: Parent) -> None:
    """A dead one cannot answer; the stopped one may, and too late."""
    os.kill(parent.start_child(), signal.SIGKILL)
    os.kill(parent.start_child(), signal.SIGSTOP)
    assert becomes(StubMonitor(parent.process.pid), StubCondition.STOPPED)


def test_a_child_that_was_not_there_at_the_first_poll_is_found_later(parent: Parent) -> None:
    monitor = StubMonitor(parent.process.pid)
    assert monitor.poll() is StubCondition.HEALTHY
    assert not monitor.has_stubs
    os.kill(parent.start_child(), signal.SIGSTOP)
    assert becomes(monitor, StubCondition.STOPPED)
    assert monitor.has_stubs


def test_a_process_that_is_gone_has_no_children() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert StubMonitor(ended.pid).poll() is StubCondition.HEALTHY
