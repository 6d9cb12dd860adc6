"""The monitor sees another process's children die, stop and appear. All are real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sm.server.supervisor.stub_monitor import StubCondition, StubMonitor
from tests.support.boxes import wait_until

#: Starts a child for each line it reads and prints its process id. It keeps every Popen object, as Python waits for
#: a child whose object is collected, and these must stay unwaited for.
PARENT = """
import subprocess, sys
children = []
for _ in sys.stdin:
    children.append(subprocess.Popen(["sleep", "60"]))
    print(children[-1].pid, flush=True)
"""


class Parent:
    """A process that stands in for Triton."""

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
    process = Parent()
    yield process
    process.end()


def wait_for_condition(monitor: StubMonitor, condition: StubCondition) -> None:
    wait_until(lambda: monitor.poll() is condition, description=f"{condition}")


def test_a_dead_child_is_seen_though_its_parent_has_not_waited_for_it(parent: Parent) -> None:
    child = parent.start_child()
    monitor = StubMonitor(parent.process.pid)
    assert monitor.poll() is StubCondition.HEALTHY
    os.kill(child, signal.SIGKILL)
    wait_for_condition(monitor, StubCondition.DEAD)


def test_a_child_that_stops_and_continues_is_seen(parent: Parent) -> None:
    child = parent.start_child()
    monitor = StubMonitor(parent.process.pid)
    os.kill(child, signal.SIGSTOP)
    wait_for_condition(monitor, StubCondition.STOPPED)
    os.kill(child, signal.SIGCONT)
    wait_for_condition(monitor, StubCondition.HEALTHY)


def test_a_stopped_child_outweighs_a_dead_one(parent: Parent) -> None:
    """A dead stub cannot answer. A stopped one may answer too late, which is worse."""
    os.kill(parent.start_child(), signal.SIGKILL)
    os.kill(parent.start_child(), signal.SIGSTOP)
    wait_for_condition(StubMonitor(parent.process.pid), StubCondition.STOPPED)


def test_a_child_started_after_the_first_poll_is_found(parent: Parent) -> None:
    monitor = StubMonitor(parent.process.pid)
    assert monitor.poll() is StubCondition.HEALTHY
    assert not monitor.has_stubs
    os.kill(parent.start_child(), signal.SIGSTOP)
    wait_for_condition(monitor, StubCondition.STOPPED)
    assert monitor.has_stubs


def test_a_process_that_has_ended_is_healthy() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert StubMonitor(process.pid).poll() is StubCondition.HEALTHY
