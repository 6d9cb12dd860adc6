"""The processes of Triton's Python models, as the kernel shows them. Nothing else in the box looks for them.

The supervisor looks for those that serve, the control plane for those of the models that it loads.

Triton 2.51 asks a new process for its model's configuration. If the process dies then, Triton does not
notice, and the load never ends. A dead process has no command line, so each is recorded while it lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm import hardware

#: Added by the kernel to what a model's process takes, in thousandths of all memory, when it chooses which to
#: kill: a model that is being loaded first, then any model, then the router and Triton.
LOADING_OOM_SCORE, OOM_SCORE = 1000, 500
#: Seconds that a process must be dead before its load has failed: by then Triton, which checks once a second,
#: has waited for one that it ended.
DEAD_GRACE_S = 3.0
DEAD, STOPPED = b"Z", (b"T", b"t")


@dataclass
class ModelProcess:
    """A child of Triton."""

    pid: int
    #: When it was started, on the boot clock.
    born: float
    #: The model's name in Triton; empty if it is not known, because the process was never seen alive, say.
    model: str = ""
    #: Its arguments, among them Triton's name of the instance. Empty until they are final.
    arguments: tuple[str, ...] = ()
    #: ``exit code 3`` or ``signal 11 (SIGSEGV)``; empty while it lives, and once Triton has waited for it.
    ending: str = ""
    #: When it was first found dead, by the clock of the search.
    dead_since: float = 0.0

    @property
    def serves(self) -> bool:
        """True for the process of an instance.

        The name of an instance ends with a number. To read a model's configuration Triton starts a process
        without one, and ends it.
        """
        return bool(self.arguments) and self.model not in self.arguments

    @property
    def instance(self) -> str:
        """Return Triton's name of the instance; empty if it does not begin with the model's."""
        return next((word for word in self.arguments if word.startswith(f"{self.model}_")), "")

    @property
    def import_failure(self) -> str:
        """Explain why its model never loads."""
        return f"the process of its model.py ended with {self.ending} while it was imported"

    def identify(self, arguments: Sequence[str], repository: Path) -> None:
        """Take over what its command line says."""
        if model := model_of(arguments, repository):
            self.model, self.arguments = model, tuple(arguments)
        else:
            # With an environment of its own, it is at first a shell with one long argument.
            words = (word for argument in arguments for word in argument.split(" "))
            self.model = model_of(words, repository) or self.model


def model_of(arguments: Iterable[str], repository: Path) -> str:
    """Return the model of the process with these arguments; empty if none is a path in the repository."""
    paths = (path for path in map(Path, arguments) if repository in path.parents)
    return next((path.relative_to(repository).parts[0] for path in paths), "")


class ModelProcesses:
    """The children of the Triton process ``triton``, which serves ``repository``."""

    def __init__(self, triton: int, repository: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.triton, self._repository, self._clock = triton, repository, clock
        self._found: dict[int, ModelProcess] = {}
        #: Every model that had a process which serves.
        self.models: set[str] = set()
        #: Set by a search that finds other children than the one before.
        self.found_others = False

    def search(self) -> None:
        """Find the children and what they are now. While models are imported, call it often."""
        children = hardware.children(self.triton)
        # The kernel may leave some out while others start or end.
        pids = children | {pid for pid in self._found if self.state(pid) is not None}
        self.found_others |= pids != self._found.keys()
        self._found = {pid: self._found.get(pid) or ModelProcess(pid, hardware.born(pid)) for pid in pids}
        for process in self._found.values():
            self._look_at(process)

    def _look_at(self, process: ModelProcess) -> None:
        if process.ending:
            return
        fields = hardware.status_fields(process.pid)
        if fields and fields[0] == DEAD:
            # The last field is the exit status.
            process.ending = hardware.describe_exit(os.waitstatus_to_exitcode(int(fields[-1])))
            process.dead_since = self._clock()
        elif not process.arguments:
            is_new = not process.model
            process.identify(hardware.command_line(process.pid), self._repository)
            if is_new and process.model:
                hardware.set_oom_score(process.pid, OOM_SCORE)
            if process.serves:
                self.models.add(process.model)

    def state(self, pid: int) -> bytes | None:
        """Return the state of a child now; None if Triton has waited for it."""
        fields = hardware.status_fields(pid)
        # The number may be another process's by now.
        return fields[0] if fields and int(fields[1]) == self.triton else None

    @property
    def serving(self) -> list[ModelProcess]:
        """Return the processes of instances, dead ones included."""
        return [process for process in self._found.values() if process.serves]

    @property
    def dead(self) -> list[ModelProcess]:
        """Return the dead processes that Triton has not waited for."""
        return [process for process in self._found.values() if process.ending]

    @property
    def recorded_models(self) -> frozenset[str]:
        """Return the models of the processes that were seen alive."""
        return frozenset(process.model for process in self._found.values()) - {""}

    def are_dead(self, model: str) -> bool:
        """True if no living process serves a model."""
        return all(process.ending or process.model != model for process in self.serving)

    def set_oom_score(self, models: Collection[str], score: int) -> None:
        """Tell the kernel how soon to kill the processes of these models when memory runs out."""
        for process in self._found.values():
            if process.model in models and not process.ending:
                hardware.set_oom_score(process.pid, score)


@dataclass(eq=False)
class Load:
    """A load of models that Triton was asked to do."""

    models: frozenset[str]
    #: On the boot clock.
    began: float
    #: Why it can never end; empty if it may.
    failure: str = ""


class ImportWatch:
    """Finds the loads whose process died at its import: Triton itself would wait for ever."""

    def __init__(self, processes: ModelProcesses, clock: Callable[[], float] = time.monotonic) -> None:
        self.processes, self._clock = processes, clock
        #: The loads that are under way, in the order in which they began.
        self._loads: list[Load] = []
        #: The dead processes that ended a load.
        self._attributed: set[int] = set()

    def begin(self, load: Load) -> None:
        """Watch a load from now on."""
        self._loads.append(load)

    def end(self, load: Load) -> None:
        """Watch a load no longer."""
        self._loads.remove(load)
        self.processes.set_oom_score(load.models, OOM_SCORE)

    def judge(self) -> None:
        """Set the failures of the loads that are under way, by what the last search found."""
        self._attributed &= {process.pid for process in self.processes.dead}
        for load in self._loads:
            self.processes.set_oom_score(load.models, LOADING_OOM_SCORE)
            self._judge(load)

    def _judge(self, load: Load) -> None:
        dead = [
            process
            for process in self.processes.dead
            if process.pid not in self._attributed and process.born > load.began
        ]
        for process in dead:
            is_own = (
                process.model in load.models if process.model else self._must_be_from(load, process, dead)
            )
            if is_own and self._clock() - process.dead_since >= DEAD_GRACE_S:
                self._attributed.add(process.pid)
                name = process.model or min(load.models)
                load.failure = (
                    f"Triton cannot load {name!r}: {process.import_failure}; its last lines are in the log"
                )

    def _must_be_from(self, load: Load, process: ModelProcess, dead: Sequence[ModelProcess]) -> bool:
        """True if each load without a recorded process has one dead, unnamed process, and ``process`` is that
        of ``load``: they began in the same order.
        """
        unnamed = sorted((each for each in dead if not each.model), key=lambda each: each.born)
        recorded = self.processes.recorded_models
        unrecorded = [each for each in self._loads if not each.models & recorded and not each.failure]
        return len(unrecorded) == len(unnamed) and (load, process) in zip(unrecorded, unnamed, strict=True)
