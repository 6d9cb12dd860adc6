"""Real processes: their output, their ends, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.server.supervisor.processes import Command, Processes
from sm.server.supervisor.watchdog import remove
from sm.settings import HERE
from tests.support.boxes import wait_until


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.kill_all()

    def all_reaped() -> bool:
        list(started.reap())
        return not started._running

    wait_until(all_reaped)


def python(code: str, **environment: str) -> Command:
    return Command((sys.executable, "-c", code), {"PATH": os.defpath, **environment})


def output_of(descriptor: int) -> str:
    received = b""

    def over() -> bool:
        nonlocal received
        try:
            part = os.read(descriptor, 65536)
        except BlockingIOError:
            return False
        received += part
        return not part

    wait_until(over)
    os.close(descriptor)
    return received.decode()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ends(processes: Processes) -> dict[int, int]:
    found: dict[int, int] = {}
    wait_until(lambda: found.update(processes.reap()) or found)
    return found


def test_a_child_has_just_the_environment_it_is_given_and_all_it_prints_arrives(processes: Processes) -> None:
    code = "import os, sys; print(sorted(os.environ)); print('err', file=sys.stderr)"
    _, output = processes.spawn(python(code, MINE="1", LC_ALL="C"))
    printed = output_of(output)
    assert "'MINE'" in printed
    assert "'HOME'" not in printed
    assert "err" in printed


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)]
)
def test_an_end_is_told_with_exit_code_or_signal(processes: Processes, code: str, status: int) -> None:
    pid, output = processes.spawn(python(code))
    assert ends(processes) == {pid: status}
    os.close(output)


def test_a_child_is_its_own_group_so_that_ctrl_c_is_the_supervisors(processes: Processes) -> None:
    pid, output = processes.spawn(python("import time; time.sleep(60)"))
    assert os.getpgid(pid) == pid != os.getpgrp()
    os.close(output)


GRANDCHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


def first_line(descriptor: int) -> str:
    def line() -> str:
        try:
            return os.read(descriptor, 100).decode()
        except BlockingIOError:
            return ""

    return str(wait_until(line))


def test_what_a_dead_child_started_dies_before_its_end_is_told(processes: Processes) -> None:
    pid, output = processes.spawn(python(GRANDCHILD))
    grandchild = int(first_line(output))
    processes.signal(pid, signal.SIGKILL)
    assert ends(processes) == {pid: -9}
    wait_until(lambda: gone(grandchild))
    os.close(output)


def test_a_signal_to_a_process_that_is_gone_is_no_error(processes: Processes) -> None:
    pid, output = processes.spawn(python(""))
    ends(processes)
    processes.signal(pid, signal.SIGTERM)
    processes.kill(pid)
    os.close(output)


def test_a_program_that_is_not_there_leaks_nothing(processes: Processes) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        processes.spawn(Command(("/nowhere/tritonserver",), {}))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PARENT = """
import sys, time
from pathlib import Path
from sm.server.supervisor.watchdog import Watchdog
from sm.server.supervisor.processes import Command, Processes
guard = Watchdog.start() if "guard" in sys.argv else None
processes = Processes()
pid, _ = processes.spawn(Command((sys.executable, "-c", sys.argv[1]), {}))
if guard:
    guard.add_group(pid)
    guard.add_path(Path(sys.argv[3]))
    guard.add_path(Path(sys.argv[3] + "-*"))
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


def test_children_die_with_their_parent_however_it_ends() -> None:
    parent, pid = start_parent("import time; time.sleep(60)")
    kill_parent(parent)
    wait_until(lambda: gone(pid))


def test_the_guard_ends_what_the_children_started_and_removes_what_is_left(tmp_path: Path) -> None:
    run, note = tmp_path / "run", tmp_path / "grandchild"
    run.mkdir()
    (run / "state.json").touch()
    (tmp_path / "run-1").touch()
    code = GRANDCHILD.replace(
        "print(child.pid, flush=True)", f"open({str(note)!r}, 'w').write(str(child.pid))"
    )
    parent, _ = start_parent(code, "guard", str(run))
    grandchild = int(wait_until(lambda: note.exists() and note.read_text()))
    kill_parent(parent)
    wait_until(lambda: gone(grandchild) and not run.exists())
    wait_until(lambda: not (tmp_path / "run-1").exists())


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove(tmp_path / "nothing")
    remove(tmp_path / "nothing-*")
    assert list(tmp_path.iterdir()) == []
