"""Find the running Triton and the processes of its Python models ("stubs") in ``/proc``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sm.run_state import Box

#: Seconds that a load may take, and that requests to the dead process may fail after it: Triton gives up on a
#: process after about one.
MAX_REPLACEMENT_S, LATE_FAILURES_S = 360.0, 10.0


def triton_pid(box: Box) -> int | None:
    """The process id of the box's Triton; None while there is none."""
    try:
        pid = json.loads(box.state_file.read_text())["processes"]["triton"]["pid"]
    except (OSError, ValueError, KeyError):
        return None
    return int(pid) if pid else None


def instance_is_running(box: Box, instance: str) -> bool:
    """Whether the process of a model instance, such as ``resnet_0_0``, is there and alive.

    One that is there in the place of a dead one does not count: see :func:`replacing`.
    """
    pid = triton_pid(box)
    return pid is not None and any(
        instance in words and not _is_replaced(box, words) for words in _stub_arguments(pid)
    )


@contextlib.contextmanager
def replacing(box: Box, model: str) -> Iterator[None]:
    """While the process of ``model``, known to be dead, is replaced by another.

    Triton goes on to give requests to the dead one until the new one serves, and finds it not healthy. The
    new one has its name by then, and must not be taken for a process that has stalled.
    """
    mark = _replacement_mark(box, model)
    try:
        _mark_until(mark, time.time() + MAX_REPLACEMENT_S)
        yield
    finally:
        _mark_until(mark, time.time() + LATE_FAILURES_S)


def _replacement_mark(box: Box, model: str) -> Path:
    return box.run / "replaced-stubs" / model


def _mark_until(mark: Path, end: float) -> None:
    """Leave a file whose modification time is when it loses its meaning."""
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    mark.touch()
    os.utime(mark, (end, end))


def _is_replaced(box: Box, arguments: list[str]) -> bool:
    """Whether the stub with these arguments runs a model whose process was replaced a moment ago."""
    models = {
        path.relative_to(box.repository).parts[0]
        for path in map(Path, arguments)
        if box.repository in path.parents
    }
    return any(_ends_after(_replacement_mark(box, model), time.time()) for model in models)


def _ends_after(mark: Path, now: float) -> bool:
    try:
        return mark.stat().st_mtime > now
    except OSError:
        return False


def _stub_arguments(triton: int) -> Iterator[list[str]]:
    """The command line of each of Triton's children. That of a dead process is empty."""
    for task in Path(f"/proc/{triton}/task").glob("*/children"):
        for pid in read_proc(task).split():
            arguments = read_proc(Path(f"/proc/{pid.decode()}/cmdline"))
            yield arguments.decode(errors="replace").split("\0")


def read_proc(path: Path) -> bytes:
    """A file of a process; nothing if the process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class DeadStub:
    """A process that has ended, and that Triton has not asked how. ``since``: when it was first seen so."""

    pid: int
    #: Triton's name of its model; empty if nobody saw the process alive.
    model: str
    #: ``exit code 3`` or ``signal 11 (SIGSEGV)``.
    ending: str
    since: float

    @property
    def sentence(self) -> str:
        """Why its model is never loaded."""
        return f"the process of its model.py ended with {self.ending} while it was imported"


class StubWatch:
    """Finds the processes that have died while Triton waits for them.

    Triton 2.51 asks a new process for its model's configuration and does not notice that it is dead: the load
    never ends. Of a dead process the kernel tells no command line, so each is remembered while it lives.
    """

    def __init__(self, repository: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository, self._clock = repository, clock
        self._triton = 0
        self._models: dict[str, str] = {}
        self._dead: dict[str, DeadStub] = {}

    def find(self, triton: int) -> tuple[DeadStub, ...]:
        """The dead of the Triton process ``triton``. Look several times a second while a model is loaded."""
        if triton != self._triton:
            self._triton, self._models, self._dead = triton, {}, {}
        tasks = Path(f"/proc/{triton}/task").glob("*/children")
        pids = {pid.decode() for task in tasks for pid in read_proc(task).split()}
        dead = {}
        for pid in pids:
            model = self._model_of(pid)
            if model:
                self._models[pid] = model
            elif stub := self._dead_stub(pid):
                dead[pid] = stub
        self._dead = dead
        self._models = {pid: model for pid, model in self._models.items() if pid in pids}
        return tuple(dead.values())

    @property
    def seen(self) -> frozenset[str]:
        """The models whose processes were seen alive, of those that are there."""
        return frozenset(self._models.values())

    def _model_of(self, pid: str) -> str:
        words = read_proc(Path(f"/proc/{pid}/cmdline")).decode(errors="replace").split("\0")
        # In an environment of its own it is a shell's one long word at first.
        for path in map(Path, (part for word in words for part in word.split(" "))):
            if self._repository in path.parents:
                return path.relative_to(self._repository).parts[0]
        return ""

    def _dead_stub(self, pid: str) -> DeadStub | None:
        # "7 (a name) Z 1 ...", and at the end how it has ended.
        fields = read_proc(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        if not fields or fields[0] != b"Z":
            return None
        if pid in self._dead:
            return self._dead[pid]
        return DeadStub(int(pid), self._models.get(pid, ""), _ending(int(fields[-1])), self._clock())


def _ending(status: int) -> str:
    """The kernel's word of how a process ended, in ours."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
