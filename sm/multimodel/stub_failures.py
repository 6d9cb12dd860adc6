"""Watch the processes of Triton's Python models, and handle the death of one.

Triton 2.51 does not notice: it calls the model ready, fails its requests, and waits for ever for the dead one
when the model is unloaded. Loaded again, the model gets a new process, and no other model is touched.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sm.errors import BadInput, TriremeError
from sm.multimodel.model_loader import Loader
from sm.run_state import Box
from sm.triton.stub_processes import DeadStub, StubWatch, read_proc, replacing, triton_pid

log = logging.getLogger(__name__)
#: Seconds between two looks, and until a model that could not be loaded again is tried again.
EVERY, AGAIN = 1.0, 10.0
#: Seconds between two looks at the processes of models that are being loaded, whatever their number.
LOOK_INTERVAL_S = 0.05
#: Seconds after which Triton has asked for the end of a process, if it ever will: it looks once a second.
DEAD_GRACE_S = 3.0


class Stubs:
    """What the kernel says of the children of the box's Triton."""

    def __init__(self, box: Box) -> None:
        self._box = box
        #: Those seen before. The kernel's list of children may leave out some while others come and go.
        self._known: tuple[int, frozenset[str]] = (0, frozenset())

    def triton(self) -> int | None:
        """Triton's pid; None while there is none."""
        return triton_pid(self._box)

    def alive(self, triton: int) -> Counter[str]:
        """How many processes each Python model has, by its name in Triton."""
        tasks = Path(f"/proc/{triton}/task").glob("*/children")
        listed = {pid.decode() for task in tasks for pid in read_proc(task).split()}
        before, known = self._known
        seen = listed | known if before == triton else listed
        models = {pid: model for pid in seen if (model := self._model_of(pid))}
        self._known = triton, frozenset(models)
        return Counter(models.values())

    def replacing(self, model: str) -> AbstractContextManager[None]:
        """While a model whose process is dead is loaded again."""
        return replacing(self._box, model)

    def gone(self, model: str) -> bool:
        """Whether a Python model has no process any more, whatever Triton says of it."""
        triton = self.triton()
        is_python = any((self._box.repository / model).glob("*/model.py"))
        return triton is not None and is_python and not self.alive(triton)[model]

    def _model_of(self, pid: str) -> str:
        # Of a dead process the command line is empty.
        words = read_proc(Path(f"/proc/{pid}/cmdline")).decode(errors="replace").split("\0")
        for path in map(Path, words):
            if self._box.repository in path.parents:
                model = path.relative_to(self._box.repository).parts[0]
                # An instance has a number behind its name; while a model is loaded, Triton asks a process
                # that has none for the model's configuration, and ends it.
                return "" if model in words else model
        return ""


class ImportWatch:
    """Ends the wait for models whose process has died while it was imported: Triton's own would never end."""

    def __init__(self, box: Box, clock: Callable[[], float] = time.monotonic) -> None:
        self._box, self._clock = box, clock
        self._watch = StubWatch(box.repository, clock)
        self._lock = threading.Lock()
        self._found: tuple[float, tuple[DeadStub, ...]] = (-LOOK_INTERVAL_S, ())
        #: The models of each load that is under way.
        self._loads: list[frozenset[str]] = []

    @contextlib.contextmanager
    def watching(self, models: Collection[str]) -> Iterator[Callable[[], None]]:
        """For as long as these are loaded. What is yielded raises :class:`BadInput` if one never will be."""
        before, load = {stub.pid for stub in self._look()}, frozenset(models)
        with self._lock:
            self._loads.append(load)

        def check() -> None:
            dead = [stub for stub in self._look() if stub.pid not in before]
            for stub in dead:
                ours = stub.model in models if stub.model else self._is_unseen(load, dead)
                if ours and self._clock() - stub.since >= DEAD_GRACE_S:
                    name = stub.model or next(iter(models))
                    why = f"{stub.sentence}; its last lines are in the log"
                    raise BadInput(f"Triton cannot load {name!r}: {why}")

        try:
            yield check
        finally:
            with self._lock:
                self._loads.remove(load)

    def _is_unseen(self, load: frozenset[str], dead: Sequence[DeadStub]) -> bool:
        """Whether processes that died before anybody saw them are those of just the loads that have none."""
        with self._lock:
            without = [models for models in self._loads if not models & self._watch.seen]
        return load in without and len(without) == sum(not stub.model for stub in dead)

    def _look(self) -> tuple[DeadStub, ...]:
        with self._lock:
            at, found = self._found
            if self._clock() - at >= LOOK_INTERVAL_S:
                triton = triton_pid(self._box)
                found = self._watch.find(triton) if triton else ()
                self._found = (self._clock(), found)
            return found


class StubFailureWatch:
    """Has models loaded again whose process has died."""

    def __init__(self, stubs: Stubs, loader: Loader, clock: Callable[[], float] = time.monotonic) -> None:
        self._stubs, self._loader, self._clock = stubs, loader, clock
        #: Triton's pid, and how many processes each model had at its best.
        self._seen: tuple[int | None, Counter[str]] = (None, Counter())
        self._not_before: dict[str, float] = {}

    def watch(self) -> None:
        """Look again and again; for a thread of its own."""
        while True:
            try:
                self.poll()
            except Exception:
                log.exception("the processes of Python models cannot be looked after")
            time.sleep(EVERY)

    def poll(self) -> None:
        """Load again what has fewer processes than before, each on a thread of its own."""
        triton = self._stubs.triton()
        alive = self._stubs.alive(triton) if triton else Counter[str]()
        before, most = self._seen
        if triton != before:
            most = Counter()
        loaded = set(self._loader.records.read().triton_models())
        # What is loaded anew under an old name counts from the beginning.
        self._seen = (triton, Counter({model: max(alive[model], most[model]) for model in loaded}))
        for model in loaded:
            if alive[model] < most[model] and self._clock() >= self._not_before.get(model, 0.0):
                self._not_before[model] = self._clock() + AGAIN
                threading.Thread(target=self._handle, args=(model, alive[model]), daemon=True).start()

    def _handle(self, model: str, alive: int) -> None:
        try:
            wanted = self._loader.instances(model)
            if alive < wanted:
                log.error(
                    "the process of a Python model has died: it is loaded again", extra={"model": model}
                )
                with self._stubs.replacing(model):
                    self._loader.reload(model)
                return
        except TriremeError as error:
            log.error("%s", error.sentence, extra={"model": model})
            return
        # Triton itself had loaded it again, and the old processes were there beside the new ones.
        self._seen[1][model] = wanted
        self._not_before.pop(model, None)
