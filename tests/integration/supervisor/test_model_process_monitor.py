"""The monitor sees the processes of Python models die, stop and appear. All are real processes."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm import hardware
from sm.hardware import OOM_KILLED
from sm.model_processes.generations import NO_PROCESS, REPORTED, UNSTABLE, SharedGeneration, now
from sm.model_processes.monitor import (
    CALM_S,
    CRASH_WINDOW_S,
    DEAD_GRACE_S,
    MAX_CRASHES,
    OBJECT_HEADER_SIZE,
    STOPPED_GRACE_S,
    TRUSTED_CHANGES,
    ModelProcessMonitor,
)
from sm.model_processes.reports import EndedGeneration
from sm.model_processes.search import ModelProcesses
from sm.polling import WATCH_S
from sm.run_state import SHARED_MEMORY
from tests.support.boxes import wait_until

#: Where the object with the health byte is in the stub's shared memory.
CONTROL_OFFSET_IN_FILE = 336
#: Starts a process with the words of each line as arguments, and prints its id; for ``wait`` it waits for the first.
#: Python waits for a child whose Popen object is collected, and these must stay unwaited for.
PARENT = """
import subprocess, sys
children = []
for line in sys.stdin:
    if line.split() == ["wait"]:
        print(children[0].wait(), flush=True)
        continue
    command = [sys.executable, "-c", "import time; time.sleep(60)", *line.split()]
    children.append(subprocess.Popen(command))
    print(children[-1].pid, flush=True)
"""


class Parent:
    """A process that stands in for Triton, with a repository and a monitor."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.repository, self.children, self.now = folder / "models", list[int](), 100.0
        self.shared = SharedGeneration.create(folder / "generation")
        self.oom_kills = 0
        #: What Triton says: that it serves every model, that it unloaded it; None: nothing.
        self.served: bool | None = False
        self.processes = ModelProcesses(self.process.pid, self.repository, lambda: self.now)
        self.monitor = ModelProcessMonitor(
            self.processes,
            self.shared,
            self.oom_killed,
            lambda: self.now,
            is_served=lambda _: self.served,
        )

    def oom_killed(self) -> bool:
        killed, self.oom_kills = self.oom_kills > 0, 0
        return killed

    def tell(self, line: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def start(self, instance: str = "one_0_0") -> int:
        """Start a process of a model, later than everything before: the kernel counts in hundredths of a second."""
        model = instance.partition("_")[0]
        last = max(
            [
                self.shared.out_since(model),
                self.shared.loaded_since(model),
                *map(hardware.born, self.children),
            ]
        )
        wait_until(lambda: now() > last + 0.02)
        pid = int(self.tell(f"{self.repository / model / '1' / 'model.py'} {instance}"))
        self.children.append(pid)
        wait_until(lambda: instance in hardware.command_line(pid))
        return pid

    def wait_for_first(self) -> None:
        """Wait for the first process, as Triton does for one that it ended."""
        self.tell("wait")
        self.children.pop(0)

    def poll_after(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.monitor.poll()

    def wait_for_state(self, pid: int, state: bytes = b"Z") -> None:
        wait_until(lambda: state_of(pid) == state)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.wait_for_state(pid)

    def pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.wait_for_state(pid, b"T")

    def polls_of_death(self) -> list[str]:
        """What two polls say of a process that has just died: Triton waits within a moment for one that it ended."""
        assert self.poll_after(0) == []
        return self.poll_after(DEAD_GRACE_S + 0.01)

    def is_out(self, model: str = "one") -> bool:
        return bool(self.shared.out_since(model))

    def admit(self) -> None:
        assert self.shared.admit("one", self.shared.out_since("one"))

    def end(self) -> None:
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.communicate(timeout=60)


def state_of(pid: int) -> bytes:
    return hardware.status_fields(pid)[0]


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    process = Parent(tmp_path)
    yield process
    process.end()


def test_the_model_of_a_dead_process_is_taken_out_alone(parent: Parent) -> None:
    child = parent.start()
    parent.start("two_0_0")
    assert parent.poll_after(0) == []
    assert parent.monitor.has_instances
    parent.kill(child)
    assert len(parent.polls_of_death()) == 1
    assert parent.shared.refusal("one")
    assert not parent.is_out("two")
    assert parent.poll_after(DEAD_GRACE_S + 0.01) == []


def test_a_model_whose_processes_keep_dying_refuses_calls_until_it_has_run_for_a_while(
    parent: Parent,
) -> None:
    for number in range(MAX_CRASHES):
        child = parent.start(f"one_0_{number}")
        parent.poll_after(CRASH_WINDOW_S / MAX_CRASHES - DEAD_GRACE_S - 1)
        parent.kill(child)
        parent.polls_of_death()
        assert (parent.shared.refusal("one") == UNSTABLE) == (number == MAX_CRASHES - 1)
        parent.admit()
    parent.start("one_0_9")
    parent.poll_after(CALM_S - 0.1)
    assert parent.shared.refusal("one") == UNSTABLE
    parent.poll_after(0.2)
    assert not parent.shared.refusal("one")


@pytest.fixture
def health(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> Iterator[memoryview]:
    """The shared memory of a stub of the model ``one``, which Triton's own would have."""
    file = SHARED_MEMORY / f"trireme-test-{os.getpid()}-py"
    file.write_bytes(bytes(mmap.PAGESIZE))
    script, instance = parent.repository / "one" / "1" / "model.py", "one_0_0"
    arguments = ["stub", str(script), file.name, "0", "0", "1", "/", str(CONTROL_OFFSET_IN_FILE), instance]
    parent.start(instance)
    monkeypatch.setattr(hardware, "command_line", lambda pid: arguments if pid in parent.children else [""])
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory, memoryview(memory) as view:
        yield view
    file.unlink()


def test_a_stopped_process_is_left_alone_once_triton_is_told_that_it_lives(
    parent: Parent, health: memoryview
) -> None:
    at = CONTROL_OFFSET_IN_FILE + OBJECT_HEADER_SIZE
    parent.poll_after(0)
    for value in (0, 1) * TRUSTED_CHANGES:
        health[at] = value
        parent.monitor.keep_healthy()
    assert not parent.monitor.keep_healthy()
    health[at] = 0
    # Triton has cleared the byte for a request.
    assert parent.monitor.keep_healthy()
    assert health[at] == 1
    assert sum(health) == 1
    parent.pause(parent.children[0])
    parent.poll_after(0)
    assert parent.poll_after(STOPPED_GRACE_S + 0.01) == []
    assert state_of(parent.children[0]) == b"T"


@pytest.mark.parametrize("values", [(0,) * 9, (1,) * 9, (0, 1, 2, 0, 1, 0, 1)])
def test_what_does_not_behave_like_a_health_byte_is_never_written(
    parent: Parent, health: memoryview, values: tuple[int, ...]
) -> None:
    at = CONTROL_OFFSET_IN_FILE + OBJECT_HEADER_SIZE
    parent.poll_after(0)
    for value in (*values, 0):
        health[at] = value
        parent.monitor.keep_healthy()
        assert health[at] == value


def test_a_stopped_process_is_killed_before_triton_gives_up_on_it(parent: Parent) -> None:
    child = parent.start()
    parent.poll_after(0)
    parent.pause(child)
    assert parent.poll_after(0) == []
    assert state_of(child) == b"T"
    assert len(parent.poll_after(STOPPED_GRACE_S + 0.01)) == 1
    parent.wait_for_state(child)
    assert parent.poll_after(DEAD_GRACE_S + 0.01) == []


def test_what_is_left_of_the_load_before_does_not_matter(parent: Parent) -> None:
    first, left = parent.start(), parent.start("one_0_1")
    parent.poll_after(0)
    parent.kill(first)
    parent.polls_of_death()
    new = parent.start()
    # While a model is out, each poll finds new processes.
    parent.poll_after(0)
    parent.admit()
    parent.kill(left)
    assert parent.polls_of_death() == []
    assert not parent.is_out()
    parent.kill(new)
    assert len(parent.polls_of_death()) == 1
    assert parent.shared.refusal("one")


def test_the_process_that_came_with_a_reload_is_found_by_the_next_poll(parent: Parent) -> None:
    first = parent.start()
    parent.poll_after(0)
    parent.kill(first)
    parent.polls_of_death()
    parent.poll_after(0)  # the model is out
    new = parent.start()
    parent.admit()
    parent.poll_after(0)
    parent.kill(new)
    assert len(parent.polls_of_death()) == 1


def test_the_instance_that_a_worker_reports_is_killed_and_the_others_serve_on(parent: Parent) -> None:
    stalled, other, neighbour = (parent.start(instance) for instance in ("one_0_0", "one_0_1", "two_0_0"))
    assert parent.shared.report("one", 0)
    assert parent.monitor.decide(EndedGeneration("one", 0, "one_0_0")) == ""
    parent.wait_for_state(stalled)
    assert {state_of(other), state_of(neighbour)} <= {b"S", b"R"}
    assert (parent.is_out(), parent.is_out("two")) == (True, False)
    assert not parent.shared.refusal("one")
    assert not parent.shared.crashed("one", 0)
    assert parent.poll_after(DEAD_GRACE_S + 0.01) == []
    # What was started since the model is out belongs to the next load.
    new, number = parent.start("one_0_2"), parent.shared.number("one")
    assert parent.shared.report("one", number)
    parent.monitor.decide(EndedGeneration("one", number))
    parent.wait_for_state(other)
    assert state_of(new) in b"SR"
    assert parent.shared.refusal("one") == NO_PROCESS


def test_a_report_that_never_came_is_decided_by_the_second_poll(parent: Parent) -> None:
    child = parent.start()
    parent.poll_after(0)
    assert parent.shared.report("one", 0)
    for refusal in (REPORTED, NO_PROCESS):
        parent.poll_after(0)
        assert parent.shared.refusal("one") == refusal
    parent.wait_for_state(child)


@pytest.mark.parametrize("waited_for", [False, True])
@pytest.mark.parametrize("memory_ran_out", [False, True])
def test_a_kill_for_memory_is_the_models_if_a_worker_noticed_the_death_first(
    parent: Parent, waited_for: bool, memory_ran_out: bool
) -> None:
    child = parent.start()
    parent.poll_after(0)
    parent.oom_kills = int(memory_ran_out)
    parent.kill(child)
    assert parent.shared.report("one", 0)
    # Triton may have waited for it already.
    if waited_for:
        parent.wait_for_first()
    said = parent.monitor.decide(EndedGeneration("one", 0, "one_0_0"))
    assert said
    assert said.endswith(OOM_KILLED) == memory_ran_out
    assert parent.shared.crashed("one", 0)
    assert parent.shared.refusal("one") == NO_PROCESS
    assert parent.polls_of_death() == []
    assert not parent.oom_kills


def test_a_dead_process_that_triton_has_taken_away_is_found_by_what_triton_says(parent: Parent) -> None:
    """Triton 2.71 waits for it when somebody asks whether the model is ready, and says that it serves it."""
    child = parent.start()
    parent.start("one_0_1")
    parent.poll_after(0)
    parent.kill(child)
    parent.poll_after(0)
    parent.wait_for_first()
    parent.served = None
    assert parent.poll_after(0) == []
    assert not parent.is_out()
    parent.served = True
    assert len(parent.poll_after(WATCH_S)) == 1
    assert parent.is_out()
    assert parent.shared.crashed("one", parent.shared.number("one") - 1)
    assert parent.poll_after(WATCH_S) == []


def test_a_process_in_whose_place_triton_has_another_has_not_died(parent: Parent) -> None:
    """Triton starts the new one first when it loads a model whose files have changed."""
    old = parent.start()
    parent.poll_after(0)
    parent.start()
    parent.served = True
    parent.kill(old)
    parent.wait_for_first()
    assert parent.poll_after(0) == []
    assert not parent.is_out()


def test_a_process_that_the_kernel_leaves_out_of_its_list_is_alive(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do so for a moment, while others start or end."""
    parent.start()
    parent.processes.search()
    monkeypatch.setattr(hardware, "children", lambda _: set())
    parent.processes.search()
    assert not parent.processes.are_dead("one")


def test_a_model_that_is_unloaded_was_not_killed(parent: Parent) -> None:
    child = parent.start()
    parent.poll_after(0)
    parent.oom_kills = 1
    parent.kill(child)
    parent.wait_for_first()
    assert parent.poll_after(0) == []
    assert parent.oom_kills
