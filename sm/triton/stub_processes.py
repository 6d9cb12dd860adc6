"""Find the running Triton and the processes of its Python models ("stubs") in ``/proc``."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sm import hardware
from sm.run_state import Box

#: Added by the kernel to what a model's process takes, in thousandths of all memory, when it chooses which to
#: kill: a model that is being loaded first, then any model, then the router and Triton.
LOADING_OOM_SCORE, STUB_OOM_SCORE = 1000, 500


def triton_pid(box: Box) -> int | None:
    """Return the process id of the box's Triton; None if it does not run."""
    try:
        pid = json.loads(box.state_file.read_text())["processes"]["triton"]["pid"]
    except (OSError, ValueError, KeyError):
        return None
    return int(pid) if pid else None


def kill_stubs(box: Box, model: str, instance: str, before: float) -> bool:
    """Kill the processes of a Python model that were started ``before`` a time on the boot clock.

    If one has the name of the ``instance``, only that. Returns False if none is alive.
    """
    triton = triton_pid(box)
    stubs = {
        pid: arguments
        for pid in hardware.children(triton or 0)
        if model_of(arguments := hardware.command_line(pid), box.served) == model
        and hardware.born(pid) <= before
    }
    named = [pid for pid, arguments in stubs.items() if instance in arguments]
    for pid in named or stubs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(stubs)


def model_of(arguments: Iterable[str], repository: Path) -> str:
    """Return the model of the stub with these arguments; empty if none is a path in the repository."""
    return next(models_of(arguments, repository), "")


def models_of(arguments: Iterable[str], repository: Path) -> Iterator[str]:
    """Yield the model of each argument that is a path in the repository."""
    for path in map(Path, arguments):
        if repository in path.parents:
            yield path.relative_to(repository).parts[0]


@dataclass(frozen=True)
class DeadStub:
    """A stub that has ended and that Triton has not waited for."""

    pid: int
    #: The model's name in Triton; empty if the process was never seen alive.
    model: str
    #: ``exit code 3`` or ``signal 11 (SIGSEGV)``.
    ending: str
    #: When it was first found dead, by the watch's clock.
    since: float
    #: When it was started, on the boot clock.
    born: float = math.inf

    @property
    def sentence(self) -> str:
        """Explain why its model never loads."""
        return f"the process of its model.py ended with {self.ending} while it was imported"


class StubWatch:
    """Finds stubs that died while Triton waits for them.

    Triton 2.51 asks a new stub for its model's configuration. If the stub dies then, Triton does not notice,
    and the load never ends. A dead process has no command line, so each stub is recorded while it lives.
    """

    def __init__(self, repository: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository, self._clock = repository, clock
        self._triton = 0
        self._models: dict[int, str] = {}
        self._dead: dict[int, DeadStub] = {}

    def find(self, triton: int) -> tuple[DeadStub, ...]:
        """Return the dead stubs of the Triton process ``triton``. During a load, call it often."""
        if triton != self._triton:
            self._triton, self._models, self._dead = triton, {}, {}
        pids = hardware.children(triton)
        dead = {}
        for pid in pids:
            model = self._model_of(pid)
            if model:
                if pid not in self._models:
                    hardware.set_oom_score(pid, STUB_OOM_SCORE)
                self._models[pid] = model
            elif stub := self._dead_stub(pid):
                dead[pid] = stub
        self._dead = dead
        self._models = {pid: model for pid, model in self._models.items() if pid in pids}
        return tuple(dead.values())

    def set_oom_score(self, models: Collection[str], score: int) -> None:
        """Tell the kernel how soon to kill the processes of these models when memory runs out."""
        for pid, model in list(self._models.items()):
            if model in models:
                hardware.set_oom_score(pid, score)

    @property
    def recorded_models(self) -> frozenset[str]:
        """Return the models of the living processes among those that were recorded."""
        return frozenset(self._models.values())

    def _model_of(self, pid: int) -> str:
        # With an environment of its own, the stub is at first a shell with one long argument.
        words = (word for argument in hardware.command_line(pid) for word in argument.split(" "))
        return model_of(words, self._repository)

    def _dead_stub(self, pid: int) -> DeadStub | None:
        # The first field is the state, the last one the exit status.
        fields = hardware.status_fields(pid)
        if not fields or fields[0] != b"Z":
            return None
        if pid in self._dead:
            return self._dead[pid]
        return DeadStub(
            pid, self._models.get(pid, ""), _ending(int(fields[-1])), self._clock(), hardware.born(pid)
        )


def _ending(status: int) -> str:
    """Translate the kernel's exit status."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
