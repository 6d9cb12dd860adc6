"""A Python model whose stub processes died is loaded again, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Collection
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


class FakeStubs(Stubs):
    """Stands in for the kernel: reports the processes that a test sets."""

    def __init__(self) -> None:
        self.pid: int | None = 7
        self.processes: Counter[str] = Counter()

    def triton(self) -> int | None:
        return self.pid

    def alive(self, triton: int) -> Counter[str]:
        return Counter(self.processes)

    def replacing(self, model: str) -> AbstractContextManager[None]:
        return nullcontext()

    def has_died(self, model: str) -> bool:
        return not self.processes[model]


class RecordingLoader(Loader):
    """Stands in for the loader: records which models are loaded again."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.reloaded: list[str] = []
        self.instances = 2

    def count_instances(self, model: str) -> int:
        return self.instances

    def reload(self, model: str) -> None:
        self.reloaded.append(model)
        raise BadInput("it does not load")


def poll(watch: StubFailureWatch) -> None:
    """Poll once, and wait for the reloads that the poll started."""
    threads_before = set(threading.enumerate())
    watch.poll()
    for thread in set(threading.enumerate()) - threads_before:
        thread.join()


def test_a_dead_stubs_model_is_reloaded_once_and_again_after_the_retry_interval(tmp_path: Path) -> None:
    records, stubs, now = Records(tmp_path / "models.json"), FakeStubs(), [100.0]
    for name in ("one", "two"):
        records.put(Record(name, "/a", name, name, {"model": name}, loaded=True))
    loader = RecordingLoader(records)
    watch = StubFailureWatch(stubs, loader, lambda: now[0])
    stubs.processes = Counter(one=2, two=1)
    poll(watch)
    stubs.processes["one"] = 1
    poll(watch)
    poll(watch)
    assert loader.reloaded == ["one"]
    now[0] += RELOAD_RETRY_S
    poll(watch)
    assert loader.reloaded == ["one", "one"]
    stubs.processes["one"] = 2
    now[0] += RELOAD_RETRY_S
    poll(watch)
    assert loader.reloaded == ["one", "one"]


def test_models_whose_stubs_died_at_once_are_reloaded_one_after_the_other(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), FakeStubs()
    running = Counter[str]()

    class SlowLoader(RecordingLoader):
        def reload(self, model: str) -> None:
            running["now"] += 1
            running["most"] = max(running["most"], running["now"])
            time.sleep(0.05)
            running["now"] -= 1
            super().reload(model)

    names = [f"m{number}" for number in range(8)]
    for name in names:
        records.put(Record(name, "/a", name, name, {"model": name}, loaded=True))
    loader = SlowLoader(records)
    watch = StubFailureWatch(stubs, loader, lambda: 100.0)
    stubs.processes = Counter(dict.fromkeys(names, 2))
    poll(watch)
    stubs.processes = Counter()
    poll(watch)
    poll(watch)
    assert sorted(loader.reloaded) == names
    assert running["most"] == 1


def test_a_stub_that_dies_before_it_was_ever_seen_is_replaced(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), FakeStubs()
    loader = RecordingLoader(records)
    watch = StubFailureWatch(stubs, loader, lambda: 100.0)
    poll(watch)
    records.put(Record("one", "/a", "one", "one", {"model": "one"}, loaded=True))
    poll(watch)
    assert loader.reloaded == ["one"]


def test_old_stubs_that_end_after_a_reload_do_not_count_as_deaths(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), FakeStubs()
    records.put(Record("one", "/a", "one", "one", {"model": "one"}, loaded=True))
    loader = RecordingLoader(records)
    watch = StubFailureWatch(stubs, loader, lambda: 100.0)
    loader.instances = 1
    for processes in (1, 2, 1):
        stubs.processes = Counter(one=processes)
        poll(watch)
    assert loader.reloaded == []
    # The death of the remaining stub is still seen.
    stubs.processes = Counter()
    poll(watch)
    assert loader.reloaded == ["one"]


def test_an_unload_or_a_new_triton_does_not_count_as_a_death(tmp_path: Path) -> None:
    records, stubs = Records(tmp_path / "models.json"), FakeStubs()
    for name in ("one", "two"):
        records.put(Record(name, "/a", name, name, {"model": name}, loaded=True))
    loader = RecordingLoader(records)
    watch = StubFailureWatch(stubs, loader, lambda: 100.0)
    stubs.processes = Counter(one=1, two=1)
    poll(watch)
    records.remove("one")
    stubs.processes = Counter(two=1)
    poll(watch)
    stubs.pid, stubs.processes = 8, Counter()
    poll(watch)
    assert loader.reloaded == []


def test_a_stub_is_attributed_to_its_model_by_its_open_files(tmp_path: Path) -> None:
    box = Box("abc", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0, multi_model=True)
    file = box.repository / "one" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.touch()
    for name in ("one_0", "one"):
        (tmp_path / name).touch()
    # A process for an instance, and one that only reads the model's configuration.
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
        # Triton's messages about its dead predecessor do not concern this process.
        assert instance_is_running(box, "one_0")
        with stubs.replacing("one"):
            assert not instance_is_running(box, "one_0")
        assert not instance_is_running(box, "one_0")
        os.utime(box.run / "replaced-stubs" / "one", (0, 0))
        assert instance_is_running(box, "one_0")
        # "other" does not exist, and "graph" is no Python model, whatever its folder holds.
        assert not stubs.has_died("other")
        graph = box.repository / "graph"
        (graph / "1").mkdir(parents=True)
        (graph / "1" / "model.py").touch()
        assert stubs.has_died("graph")
        (graph / "config.pbtxt").write_text('backend: "onnxruntime"')
        assert not stubs.has_died("graph")
        children += map(int, Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split())
        assert len(children) == 2
        # The kernel may leave a process out of the list of children for a moment. Here it does so for good.
        parent.kill()
        wait_until(lambda: not Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        assert stubs.alive(parent.pid) == {"one": 1}
        # A new Triton has none of the old one's stubs.
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


class FakeStubWatch(StubWatch):
    """Stands in for the kernel: reports the dead stubs and the models whose stubs were seen, as a test sets them."""

    def __init__(self) -> None:
        self.dead: tuple[DeadStub, ...] = ()
        self.alive: frozenset[str] = frozenset()

    def find(self, triton: int) -> tuple[DeadStub, ...]:
        return self.dead

    def set_oom_score(self, models: Collection[str], score: int) -> None: ...

    @property
    def recorded_models(self) -> frozenset[str]:
        return self.alive


def make_import_watch(tmp_path: Path, clock: list[float]) -> tuple[ImportWatch, FakeStubWatch]:
    """A watch of a box whose Triton has the process id 7."""
    box = Box("abc", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0, multi_model=True)
    write_atomically(box.state_file, '{"processes": {"triton": {"pid": 7}}}')
    watch, fake_stubs = ImportWatch(box, lambda: clock[0]), FakeStubWatch()
    watch._watch = fake_stubs
    return watch, fake_stubs


def test_only_the_load_whose_stub_died_is_failed(tmp_path: Path) -> None:
    clock = [100.0]
    watch, fake_stubs = make_import_watch(tmp_path, clock)
    with watch.watching({"one"}) as check_one, watch.watching({"two"}) as check_two:
        fake_stubs.dead = (DeadStub(8, "one", "exit code 3", 100.0),)
        clock[0] += DEAD_GRACE_S / 2
        check_one()
        clock[0] += DEAD_GRACE_S
        check_two()
        with pytest.raises(BadInput, match="'one': the process of its model.py ended with exit code 3"):
            check_one()
    # The same dead stub does not fail the next load of that name.
    with watch.watching({"one"}) as check_again:
        clock[0] += DEAD_GRACE_S
        check_again()


def test_an_unknown_dead_stub_fails_the_only_load_without_a_living_one(tmp_path: Path) -> None:
    clock = [100.0]
    watch, fake_stubs = make_import_watch(tmp_path, clock)
    with watch.watching({"one"}) as check_one, watch.watching({"two"}) as check_two:
        fake_stubs.dead = (DeadStub(8, "", "exit code 3", 100.0),)
        clock[0] += DEAD_GRACE_S
        # The dead stub may belong to either load.
        check_one()
        check_two()
        fake_stubs.alive = frozenset({"two"})
        clock[0] += 1
        check_two()
        with pytest.raises(BadInput):
            check_one()
