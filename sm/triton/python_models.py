"""The Python models of a box: which may answer in a call, their wrapper, and their processes ("stubs")."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sm import hardware
from sm.repository.ensembles import steps
from sm.repository.models import Model
from sm.run_state import Box
from sm.settings import PACKAGE

#: The class with which a Python model calls others (business logic scripting). It may call any.
CALL = "InferenceRequest"
#: Both run in the model's process, so they import nothing of the box.
WRAPPER = PACKAGE / "triton" / "wrapped_model.py"
TOKENS = PACKAGE / "triton" / "onnx_cpu" / "request_token.py"
#: The name under which the wrapper finds the team's own ``model.py``.
INNER = "trireme_inner_model.py"
#: Added by the kernel to what a model's process takes, in thousandths of all memory, when it chooses which to
#: kill: a model that is being loaded first, then any model, then the router and Triton.
LOADING_OOM_SCORE, STUB_OOM_SCORE = 1000, 500


class Reach(NamedTuple):
    """What may answer in a call of a model."""

    #: The names of the Python models.
    python: tuple[str, ...]
    #: Those that the model consists of: it, or an ensemble's steps in their order.
    parts: tuple[str, ...]
    #: True if one of the parts may answer after its execution has ended.
    is_decoupled: bool
    #: True if one of all keeps state between calls.
    has_state: bool


class PythonModels:
    """The Python models of a box's repository, as far as they were asked for."""

    def __init__(self, box: Box) -> None:
        self._box = box
        #: In multi-model mode another model may get a name, and this file is written then. A new version of a
        #: model has a name of its own.
        self._changes = box.models_file if box.multi_model else None
        self._known: tuple[float, dict[str, Reach]] = (0.0, {})

    def of(self, model: str) -> Reach:
        """Return what may answer in a call of ``model``."""
        changed, known = self._known
        if self._changes and (now := _modified(self._changes)) != changed:
            known = {}
            self._known = now, known
        reach = known.get(model)
        if reach is None:
            reach = self._reach(model)
            # A caller may send any name.
            if self._is_model(model):
                known[model] = reach
        return reach

    def _reach(self, model: str) -> Reach:
        reached = {each.name: each for each in self._reached(model)}
        python = tuple(name for name, each in reached.items() if each.backend == "python")
        parts = tuple(dict.fromkeys(_parts(model, reached)))
        configurations = (reached[name].config for name in parts)
        is_decoupled = any(config and config.model_transaction_policy.decoupled for config in configurations)
        return Reach(python, parts, is_decoupled, any(each.has_state for each in reached.values()))

    def _reached(self, model: str) -> Iterator[Model]:
        """Yield each model that may answer in a call of ``model``."""
        seen: set[str] = set()
        waiting = [model]
        while waiting:
            name = waiting.pop()
            if name in seen or not self._is_model(name):
                continue
            seen.add(name)
            described = Model.read(self._box.served / name)
            yield described
            waiting += steps(described)
            if described.backend == "python" and _calls_others(described):
                waiting += self._box.served_names()

    def _is_model(self, name: str) -> bool:
        return "/" not in name and name not in ("", ".", "..") and (self._box.served / name).is_dir()


def _parts(model: str, reached: Mapping[str, Model], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the Python models that ``model`` consists of. An ensemble may name itself."""
    described = reached.get(model)
    if described and described.backend == "python":
        yield model
    elif described and model not in above:
        for step in steps(described):
            yield from _parts(step, reached, (*above, model))


def _calls_others(model: Model) -> bool:
    try:
        return any(
            CALL in file.read_text(errors="replace")
            for file in model.folder.glob("*/**/*.py")
            if file.resolve() != WRAPPER
        )
    except FileNotFoundError:
        return True  # the files of a version that serves have been replaced: nobody knows what it calls


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def wrap(model: Path) -> None:
    """Make the answers of a Python model say which request they are for.

    Args:
        model: A model's folder of links. Each ``model.py`` in it gets a wrapper, unless it answers with
            tokens itself.
    """
    for script in model.glob("*/model.py"):
        target = script.resolve()
        if TOKENS.stem in target.read_text(errors="replace"):
            continue
        script.unlink()
        script.with_name(INNER).symlink_to(target)
        script.symlink_to(WRAPPER)
        if not script.with_name(TOKENS.name).exists():
            script.with_name(TOKENS.name).symlink_to(TOKENS)


def triton_pid(box: Box) -> int | None:
    """Return the process id of the box's Triton; None if it does not run."""
    try:
        pid = json.loads(box.state_file.read_text())["processes"]["triton"]["pid"]
    except (OSError, ValueError, KeyError):
        return None
    return int(pid) if pid else None


def model_of(arguments: Iterable[str], repository: Path) -> str:
    """Return the model of the stub with these arguments; empty if none is a path in the repository."""
    paths = (path for path in map(Path, arguments) if repository in path.parents)
    return next((path.relative_to(repository).parts[0] for path in paths), "")


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
        ending = hardware.describe_exit(os.waitstatus_to_exitcode(int(fields[-1])))
        return DeadStub(pid, self._models.get(pid, ""), ending, self._clock(), hardware.born(pid))
