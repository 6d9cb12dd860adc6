"""A Python model that has fewer processes than before is loaded again, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.multimodel.load_records import Record, Records
from sm.multimodel.model_loader import Loader
from sm.multimodel.stub_failures import DEAD_GRACE_S, RELOAD_RETRY_S, ImportWatch, StubFailureWatch, Stubs
from sm.run_state import Box, write_atomically
from sm.triton.stub_processes import DeadStub, StubWatch, instance_is_running
from tests.support.boxes import wait_until


class Told(Stubs):
    """Stands in for the kernel: says what it is told."""

    def __init__(self) -> None:
        self.pid: int | None = 7
        self.processes: Counter[str] = Counter()

    def triton(self) -> int | None:
        return self.pid

    def alive(self, triton: int) -> Counter[str]:
        return Counter(self.processes)

    def replacing(self, model: str) -> AbstractContextManager[None]:
        return nullcontext()


class Noted(Loader):
    """Stands in for the loader: notes what is loaded again."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.again: list[str] = []
        self.wanted = 2
        self.done, self.asked = threading.Semaphore(0), threading.Semaphore(0)

    def count_instances(self, model: str) -> int:
        self.asked.release()
        return self.wanted

    def reload(self, model: str) -> None:
        self.again.append(model)
        self.done.release()
        raise BadInput("it does not load")


def test_a_death_is_seen_once_and_tried_again_after_a_while(tmp_path: Path) -> None:
    records, stubs, now = Records(tmp_path / "models.json"), Told(), [100.0]
    for name in ("one", "two"):
        records.put(Record(name, "/a", name, name, {"model": name}, loaded=True))
    loader = Noted(records)
    nurse = StubFailureWatch(stubs, loader, lambda: now[0])
    stubs.processes = Counter(one=2, two=1)
    nurse.poll()
    stubs.processes["one"] = 1
    nurse.poll()
    assert loader.done.acquire(timeout=5)
    nurse.poll()
    now[0] += RELOAD_RETRY_S
    nurse.poll()
    assert loader.done.acquire(timeout=5)
    assert loader.again == ["one", "one"]
    stubs.processes["one"] = 2
    now[0] += RELOAD_RETRY_S
    nurse.poll()
    assert loader.again == ["one", "one"]


def test_old_processes_that_end_after_a_reload_are_no_deaths(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), Told()
    records.put(Record("one", "/a", "one", "one", {"model": "one"}, loaded=True))
    loader = Noted(records)
    nurse = StubFailureWatch(stubs, loader, lambda: 100.0)
    loader.wanted = 1
    for processes in (1, 2, 1):
        stubs.processes = Counter(one=processes)
        nurse.poll()
    assert loader.asked.acquire(timeout=5)
    # It is seen all the same when the one that is left dies.
    stubs.processes = Counter()

    def loaded_again() -> bool:
        nurse.poll()
        return bool(loader.again)

    wait_until(loaded_again)
    assert loader.again == ["one"]


def test_an_unload_and_a_new_triton_are_no_deaths(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), Told()
    for name in ("one", "two"):
        records.put(Record(name, "/a", name, name, {"model": name}, loaded=True))
    loader = Noted(records)
    nurse = StubFailureWatch(stubs, loader, lambda: 100.0)
    stubs.processes = Counter(one=1, two=1)
    nurse.poll()
    records.remove("one")
    stubs.processes = Counter(two=1)
    nurse.poll()
    stubs.pid, stubs.processes = 8, Counter()
    nurse.poll()
    assert loader.again == []


def test_the_kernel_says_which_model_a_process_is_for(tmp_path: Path) -> None:
    box = Box("abc", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0, multi_model=True)
    file = box.repository / "one" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.touch()
    for name in ("one_0", "one"):
        (tmp_path / name).touch()
    # An instance, and the process that is asked for the configuration alone.
    script = f"tail -f {file} one_0 >/dev/null & tail -f {file} one >/dev/null & echo started; wait"
    parent = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, cwd=tmp_path)
    children: list[int] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        write_atomically(box.state_file, f'{{"processes": {{"triton": {{"pid": {parent.pid}}}}}}}')
        stubs = Stubs(box)
        assert stubs.triton() == parent.pid
        while not stubs.alive(parent.pid):
            pass
        assert stubs.alive(parent.pid) == {"one": 1}
        assert not stubs.has_died("one")
        # Triton's complaints about its dead predecessor are not about this one.
        assert instance_is_running(box, "one_0")
        with stubs.replacing("one"):
            assert not instance_is_running(box, "one_0")
        assert not instance_is_running(box, "one_0")
        os.utime(box.run / "replaced-stubs" / "one", (0, 0))
        assert instance_is_running(box, "one_0")
        # It is no Python model.
        assert not stubs.has_died("other")
        children += map(int, Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split())
        assert len(children) == 2
        # The kernel may leave it out of the list for a moment; here it does for good.
        parent.kill()
        wait_until(lambda: not Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        assert stubs.alive(parent.pid) == {"one": 1}
        # A new Triton has none of the old one's.
        assert stubs.alive(os.getpid()) == {}
    finally:
        for pid in (parent.pid, *children):
            os.kill(pid, signal.SIGKILL)
        parent.wait(10)
        assert parent.stdout is not None
        parent.stdout.close()
    write_atomically(box.state_file, '{"processes": {"triton": {"pid": null}}}')
    assert stubs.triton() is None
    assert not stubs.has_died("one")


class Dead(StubWatch):
    """Stands in for the kernel: says which processes have died, and whose were seen."""

    def __init__(self) -> None:
        self.dead: tuple[DeadStub, ...] = ()
        self.alive: frozenset[str] = frozenset()

    def find(self, triton: int) -> tuple[DeadStub, ...]:
        return self.dead

    @property
    def recorded_models(self) -> frozenset[str]:
        return self.alive


def import_watch(tmp_path: Path, now: list[float]) -> tuple[ImportWatch, Dead]:
    """A watch of a box whose Triton is process 7."""
    box = Box("abc", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0, multi_model=True)
    write_atomically(box.state_file, '{"processes": {"triton": {"pid": 7}}}')
    watch, kernel = ImportWatch(box, lambda: now[0]), Dead()
    watch._watch = kernel
    return watch, kernel


def test_a_load_whose_process_died_at_an_import_is_ended_and_no_other(tmp_path: Path) -> None:
    now = [100.0]
    watch, kernel = import_watch(tmp_path, now)
    with watch.watching({"one"}) as one, watch.watching({"two"}) as two:
        kernel.dead = (DeadStub(8, "one", "exit code 3", 100.0),)
        now[0] += DEAD_GRACE_S / 2
        one()
        now[0] += DEAD_GRACE_S
        two()
        with pytest.raises(BadInput, match="'one': the process of its model.py ended with exit code 3"):
            one()
    # It stays dead, which is nothing to the next load of that name.
    with watch.watching({"one"}) as again:
        now[0] += DEAD_GRACE_S
        again()


def test_a_process_that_nobody_saw_alive_is_the_load_s_that_has_none(tmp_path: Path) -> None:
    now = [100.0]
    watch, kernel = import_watch(tmp_path, now)
    with watch.watching({"one"}) as one, watch.watching({"two"}) as two:
        kernel.dead = (DeadStub(8, "", "exit code 3", 100.0),)
        now[0] += DEAD_GRACE_S
        # It may be either's.
        one()
        two()
        kernel.alive = frozenset({"two"})
        now[0] += 1
        two()
        with pytest.raises(BadInput):
            one()
