"""Real processes: their output, how their end is reported, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sm.server.supervisor.processes import ChildCommand, Processes
from sm.settings import HERE
from tests.support.boxes import children, wait_until


@pytest.fixture
def processes() -> Iterator[Processes]:
    others = set(children(os.getpid()))  # boxes and servers that other tests of this process share
    backend = Processes()
    yield backend
    backend.kill_all()

    def is_alone() -> bool:
        list(backend.reap())
        return set(children(os.getpid())) <= others

    wait_until(is_alone)


def python(code: str, **environment: str) -> ChildCommand:
    return ChildCommand((sys.executable, "-c", code), {"PATH": os.defpath, **environment})


def output_of(processes: Processes, command: ChildCommand) -> str:
    _, descriptor = processes.spawn(command)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor) as stream:
        return stream.read()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def reap_ended(processes: Processes) -> dict[int, int]:
    statuses: dict[int, int] = {}
    wait_until(lambda: statuses.update(processes.reap()) or statuses)
    return statuses


def test_a_child_can_get_no_more_rights_than_it_has(processes: Processes) -> None:
    printed = output_of(processes, python("print(open('/proc/self/status').read())"))
    assert "NoNewPrivs:\t1" in printed.splitlines()


def test_a_child_has_only_the_given_environment_and_all_its_output_arrives(processes: Processes) -> None:
    code = "import os, sys; print(*os.environ, sep='\\n', flush=True); print('err', file=sys.stderr)"
    printed = output_of(processes, python(code, MINE="1", LC_ALL="C")).split()
    assert set(printed) >= {"MINE", "err"}
    assert "HOME" not in printed


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)]
)
def test_an_ended_child_is_reported_with_its_exit_code_or_signal(
    processes: Processes, code: str, status: int
) -> None:
    pid, output = processes.spawn(python(code))
    assert reap_ended(processes) == {pid: status}
    os.close(output)


#: Starts a child of its own, and writes its process id to a file.
GRANDCHILD = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path({file!r}).write_text(f"{{child.pid}}\\n")
time.sleep(60)
"""


def pid_in(file: Path) -> int:
    return int(wait_until(lambda: file.exists() and file.read_text().endswith("\n") and file.read_text()))


def test_a_dead_childs_own_children_are_killed(processes: Processes, tmp_path: Path) -> None:
    pid, output = processes.spawn(python(GRANDCHILD.format(file=str(tmp_path / "pid"))))
    grandchild = pid_in(tmp_path / "pid")
    processes.signal(pid, signal.SIGKILL)
    assert reap_ended(processes) == {pid: -9}
    os.close(output)
    wait_until(lambda: is_gone(grandchild))


def test_a_program_that_does_not_exist_leaks_no_file_descriptor(processes: Processes) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        processes.spawn(ChildCommand(("/nowhere/tritonserver",), {}))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


#: Starts a program with an owner of processes, whose watchdog removes a folder if one is named.
PARENT = """
import sys, time
from pathlib import Path
from sm.server.supervisor.processes import ChildCommand, Processes, Watchdog
program, folder = sys.argv[1:]
processes = Processes(Watchdog.start(Path(folder).rmdir) if folder else None)
processes.spawn(ChildCommand((sys.executable, "-c", program), {}))
time.sleep(60)
"""


@pytest.mark.parametrize("has_watchdog", [False, True])
def test_children_die_when_their_parent_is_killed_and_with_a_watchdog_their_children(
    tmp_path: Path, has_watchdog: bool
) -> None:
    """The watchdog cleans up, too."""
    run, file = tmp_path / "run", tmp_path / "pid"
    run.mkdir()
    child = f"import os, time; print(os.getpid(), file=open({str(file)!r}, 'w')); time.sleep(60)"
    program = GRANDCHILD.format(file=str(file)) if has_watchdog else child
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, program, str(run) if has_watchdog else ""], cwd=HERE
    )
    pid = pid_in(file)
    parent.kill()
    parent.wait(60)
    wait_until(lambda: is_gone(pid) and not (has_watchdog and run.exists()))


ATTEMPTS = """
import os
parent = f"/proc/{os.getppid()}"
for attempt in (
    lambda: os.kill(os.getppid(), 0),
    lambda: open(f"{parent}/mem", "rb"),
    lambda: os.readlink(f"{parent}/fd/0"),
    lambda: os.kill(os.getpid(), 0),
):
    try:
        attempt()
        print("can")
    except PermissionError:
        print("cannot")
"""


@pytest.mark.parametrize(("runs_models", "reach"), [(False, "can"), (True, "cannot")])
def test_processes_of_models_cannot_reach_into_those_of_the_box(
    processes: Processes, runs_models: bool, reach: str
) -> None:
    printed = output_of(processes, replace(python(ATTEMPTS), runs_models=runs_models))
    assert printed.split() == [reach] * 3 + ["can"]
