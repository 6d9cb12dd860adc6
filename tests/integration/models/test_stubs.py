"""A Python model whose stub processes died is loaded again, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from sm.errors import BadInput, TriremeError
from sm.metrics import RELOADS
from sm.models.model_processes import DEAD_GRACE_S, ImportWatch, NeedsNewTriton, Reloads, Stubs
from sm.run_state import Box, write_atomically
from sm.triton.generation import SharedGeneration, now
from sm.triton.python_models import DeadStub, StubWatch, triton_pid
from tests.support.boxes import wait_until


class Reloading:
    """Reloads with a clock and a Triton that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.now = SharedGeneration.create(folder / "generation"), 100.0
        self.names = ["one", "two"]
        self.loaded: list[str] = []
        self.replaced: list[str] = []
        self.errors: list[TriremeError] = []
        self.during: Callable[[], None] = lambda: None
        self.reloads = Reloads(
            self.shared, lambda: self.names, self.load, self.replaced.append, lambda: self.now
        )

    def load(self, model: str) -> None:
        self.loaded.append(model)
        self.during()
        if self.errors:
            raise self.errors.pop()

    def poll(self) -> None:
        """Poll once, and wait for the reloads that the poll started."""
        threads_before = set(threading.enumerate())
        self.reloads.poll()
        for thread in set(threading.enumerate()) - threads_before:
            thread.join()


def test_a_model_that_was_taken_out_is_loaded_again_and_admitted(tmp_path: Path) -> None:
    box = Reloading(tmp_path)
    box.poll()
    assert box.loaded == []
    before = RELOADS.labels("one").value
    box.shared.take_out("one", now())
    box.shared.refuse("one")
    box.poll()
    box.poll()
    assert box.loaded == ["one"]
    assert not box.shared.out_since("one")
    assert not box.shared.refusal("one")
    assert RELOADS.labels("one").value == before + 1


def test_a_model_that_does_not_load_is_tried_again_later(tmp_path: Path) -> None:
    box = Reloading(tmp_path)
    box.errors = [BadInput("it does not load")]
    box.shared.take_out("one", now())
    box.poll()
    box.poll()
    assert box.loaded == ["one"]
    assert box.shared.out_since("one")
    box.now += 1.0
    box.poll()
    assert box.loaded == ["one", "one"]
    assert not box.shared.out_since("one")


def test_a_process_that_dies_during_the_reload_causes_another(tmp_path: Path) -> None:
    box = Reloading(tmp_path)
    box.shared.take_out("one", now())

    def lose_once() -> None:
        box.during = lambda: None
        time.sleep(0.01)
        box.shared.take_out("one", now())

    box.during = lose_once
    box.poll()
    assert box.shared.out_since("one")
    box.poll()
    assert box.loaded == ["one", "one"]
    assert not box.shared.out_since("one")


def test_a_load_that_this_triton_cannot_do_replaces_triton(tmp_path: Path) -> None:
    box = Reloading(tmp_path)
    box.errors = [NeedsNewTriton("Triton cannot load 'one'")]
    box.shared.take_out("one", now())
    box.poll()
    assert box.replaced == ["Triton cannot load 'one': Triton is started again"]


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
        assert triton_pid(box) == parent.pid
        while not stubs.alive(parent.pid):
            pass
        assert stubs.alive(parent.pid) == {"one"}
        assert not stubs.has_died("one")
        # "other" does not exist, and "graph" is not a Python model, whatever its folder holds.
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
        assert stubs.alive(parent.pid) == {"one"}
        # A new Triton has none of the old one's stubs.
        assert stubs.alive(os.getpid()) == set()
    finally:
        for pid in (parent.pid, *children):
            os.kill(pid, signal.SIGKILL)
        parent.wait(10)
        assert parent.stdout is not None
        parent.stdout.close()
    write_atomically(box.state_file, '{"processes": {"triton": {"pid": null}}}')
    assert triton_pid(box) is None
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


def test_unknown_dead_stubs_fail_the_loads_in_whose_order_they_began(tmp_path: Path) -> None:
    clock = [100.0]
    watch, fake_stubs = make_import_watch(tmp_path, clock)
    with contextlib.ExitStack() as first_load, watch.watching({"two"}) as check_two:
        check_one = first_load.enter_context(watch.watching({"one"}))
        later = now() + 1
        fake_stubs.dead = (
            DeadStub(9, "", "exit code 3", 100.0, later + 1),
            DeadStub(8, "", "signal 11 (SIGSEGV)", 100.0, later),
        )
        check_one()
        clock[0] += DEAD_GRACE_S
        with pytest.raises(BadInput, match="'one': .* exit code 3"):
            check_one()
        first_load.close()
        clock[0] += DEAD_GRACE_S
        with pytest.raises(BadInput, match=r"'two': .* signal 11 \(SIGSEGV\)"):
            check_two()


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
