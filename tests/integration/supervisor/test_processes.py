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

from sm.server.supervisor.processes import Command, Processes
from sm.settings import HERE
from tests.support.boxes import wait_until


@pytest.fixture
def processes() -> Iterator[Processes]:
    backend = Processes()
    yield backend
    backend.kill_all()

    def all_reaped() -> bool:
        list(backend.reap())
        return not backend._running

    wait_until(all_reaped)


def python(code: str, **environment: str) -> Command:
    return Command((sys.executable, "-c", code), {"PATH": os.defpath, **environment})


def read_output(descriptor: int, first_line: bool = False) -> str:
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor) as stream:
        return stream.readline() if first_line else stream.read()


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
    _, output = processes.spawn(python("print(open('/proc/self/status').read())"))
    assert "NoNewPrivs:\t1" in read_output(output)


def test_a_child_has_only_the_given_environment_and_all_its_output_arrives(processes: Processes) -> None:
    code = "import os, sys; print(sorted(os.environ)); print('err', file=sys.stderr)"
    _, output = processes.spawn(python(code, MINE="1", LC_ALL="C"))
    printed = read_output(output)
    assert "'MINE'" in printed
    assert "'HOME'" not in printed
    assert "err" in printed


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)]
)
def test_an_ended_child_is_reported_with_its_exit_code_or_signal(
    processes: Processes, code: str, status: int
) -> None:
    pid, output = processes.spawn(python(code))
    assert reap_ended(processes) == {pid: status}
    os.close(output)


GRANDCHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


def test_a_dead_childs_own_children_are_killed(processes: Processes) -> None:
    pid, output = processes.spawn(python(GRANDCHILD))
    grandchild = int(read_output(output, first_line=True))
    processes.signal(pid, signal.SIGKILL)
    assert reap_ended(processes) == {pid: -9}
    wait_until(lambda: is_gone(grandchild))


def test_a_program_that_does_not_exist_leaks_no_file_descriptor(processes: Processes) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        processes.spawn(Command(("/nowhere/tritonserver",), {}))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PARENT = """
import sys, time
from pathlib import Path
from sm.server.supervisor.processes import Watchdog
from sm.server.supervisor.processes import Command, Processes
watchdog = Watchdog.start(Path(sys.argv[3]).rmdir) if "watchdog" in sys.argv else None
processes = Processes(watchdog)
pid, _ = processes.spawn(Command((sys.executable, "-c", sys.argv[1]), {}))
print(pid, flush=True)
time.sleep(60)
"""


def start_parent(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    return parent, pid


def kill_parent(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.communicate(timeout=60)


def test_children_die_when_their_parent_is_killed() -> None:
    parent, pid = start_parent("import time; time.sleep(60)")
    kill_parent(parent)
    wait_until(lambda: is_gone(pid))


def test_the_watchdog_kills_grandchildren_and_cleans_up(tmp_path: Path) -> None:
    run, pid_file = tmp_path / "run", tmp_path / "grandchild"
    run.mkdir()
    code = GRANDCHILD.replace(
        "print(child.pid, flush=True)", f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    )
    parent, _ = start_parent(code, "watchdog", str(run))
    grandchild = int(wait_until(lambda: pid_file.exists() and pid_file.read_text()))
    kill_parent(parent)
    wait_until(lambda: is_gone(grandchild) and not run.exists())


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
    command = replace(python(ATTEMPTS), runs_models=runs_models)
    _, output = processes.spawn(command)
    assert read_output(output).split() == [reach] * 3 + ["can"]
