"""Watch the processes of Triton's Python models, and reload a model whose process died.

Triton 2.51 does not notice the death: it reports the model as ready, fails its requests, and waits for ever
when the model is unloaded. Loading the model again gives it a new process and affects no other model.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager

from sm import process_table
from sm.errors import BadInput, TriremeError
from sm.multimodel.model_loader import Loader
from sm.polling import Poll
from sm.repository.models import Model
from sm.run_state import Box
from sm.triton.stub_processes import (
    LOADING_OOM_SCORE,
    STUB_OOM_SCORE,
    DeadStub,
    StubWatch,
    model_of,
    replacing,
    triton_pid,
)

log = logging.getLogger(__name__)
POLL_INTERVAL_S = 1.0
#: A model that could not be loaded again is tried again after this time.
RELOAD_RETRY_S = 10.0
#: Seconds that a model which is loaded again makes others wait.
TURN_S = 20.0
#: Seconds between two searches for dead processes, however many models are being loaded.
SEARCH_INTERVAL_S = 0.05
#: Seconds that a process must be dead: by then Triton, which checks once a second, has reaped one that it
#: ended.
DEAD_GRACE_S = 3.0


class Stubs:
    """The children of the box's Triton, as the kernel shows them."""

    def __init__(self, box: Box) -> None:
        self._box = box
        #: Triton's pid and its last known stubs. The kernel's list may omit some while others start or end.
        self._last_stubs: tuple[int, frozenset[int]] = (0, frozenset())

    def triton(self) -> int | None:
        """Return Triton's pid; None if it does not run."""
        return triton_pid(self._box)

    def alive(self, triton: int) -> Counter[str]:
        """Return the number of processes of each Python model, by its name in Triton."""
        listed = process_table.children(triton)
        before, known_pids = self._last_stubs
        pids = listed | known_pids if before == triton else listed
        models = {pid: model for pid in pids if (model := self._model_of(pid))}
        self._last_stubs = triton, frozenset(models)
        return Counter(models.values())

    def replacing(self, model: str) -> AbstractContextManager[None]:
        """Mark a model whose dead process is being replaced."""
        return replacing(self._box, model)

    def has_died(self, model: str) -> bool:
        """True if a Python model has no process any more, whatever Triton reports."""
        triton = self.triton()
        return triton is not None and self._is_python(model) and not self.alive(triton)[model]

    def _is_python(self, model: str) -> bool:
        try:
            return Model.read(self._box.repository / model).backend == "python"
        except OSError:
            # It is being unloaded.
            return False

    def _model_of(self, pid: int) -> str:
        arguments = process_table.command_line(pid)
        model = model_of(arguments, self._box.repository)
        # An instance's name ends with a number. While a model is loaded, Triton starts a process without one
        # to read the model's configuration, and ends it.
        return "" if model in arguments else model


class ImportWatch:
    """Ends the load of a model whose process died at its import: Triton itself would wait for ever."""

    def __init__(self, box: Box, clock: Callable[[], float] = time.monotonic) -> None:
        self._box, self._clock = box, clock
        self._watch = StubWatch(box.repository, clock)
        self._lock = threading.Lock()
        self._last_search: tuple[float, tuple[DeadStub, ...]] = (-SEARCH_INTERVAL_S, ())
        #: The models of each load that is under way.
        self._loads: list[frozenset[str]] = []

    @contextlib.contextmanager
    def watching(self, models: Collection[str]) -> Iterator[Callable[[], None]]:
        """Watch these models during their load. The yielded check raises :class:`BadInput` if one can never
        load.
        """
        before, load = {stub.pid for stub in self._find_dead()}, frozenset(models)
        with self._lock:
            self._loads.append(load)

        def check() -> None:
            self._watch.set_oom_score(load, LOADING_OOM_SCORE)
            dead = [stub for stub in self._find_dead() if stub.pid not in before]
            for stub in dead:
                is_own = stub.model in models if stub.model else self._must_be_from(load, dead)
                if is_own and self._clock() - stub.since >= DEAD_GRACE_S:
                    name = stub.model or next(iter(models))
                    reason = f"{stub.sentence}; its last lines are in the log"
                    raise BadInput(f"Triton cannot load {name!r}: {reason}")

        try:
            yield check
        finally:
            self._watch.set_oom_score(load, STUB_OOM_SCORE)
            with self._lock:
                self._loads.remove(load)

    def _must_be_from(self, load: frozenset[str], dead: Sequence[DeadStub]) -> bool:
        """True if ``load`` has no recorded process, and each such load has one dead, unnamed process."""
        with self._lock:
            without_stub = [models for models in self._loads if not models & self._watch.recorded_models]
        return load in without_stub and len(without_stub) == sum(not stub.model for stub in dead)

    def _find_dead(self) -> tuple[DeadStub, ...]:
        with self._lock:
            at, dead_stubs = self._last_search
            if self._clock() - at >= SEARCH_INTERVAL_S:
                triton = triton_pid(self._box)
                dead_stubs = self._watch.find(triton) if triton else ()
                self._last_search = (self._clock(), dead_stubs)
            return dead_stubs


class StubFailureWatch:
    """Reloads models whose process died."""

    def __init__(self, stubs: Stubs, loader: Loader, clock: Callable[[], float] = time.monotonic) -> None:
        self._stubs, self._loader, self._clock = stubs, loader, clock
        #: Triton's pid, and the highest number of processes that each model had.
        self._max_alive: tuple[int | None, Counter[str]] = (None, Counter())
        self._not_before: dict[str, float] = {}
        #: Held while a model is loaded again: many processes may have died at once, and memory may be short.
        self._turn = threading.Lock()

    def watch(self) -> None:
        """Start a thread that calls :meth:`poll` at intervals."""
        Poll("stub-failures", POLL_INTERVAL_S, self.poll, at_once=True).start()

    def poll(self) -> None:
        """Reload each model that has fewer processes than before, in a thread of its own."""
        triton = self._stubs.triton()
        alive = self._stubs.alive(triton) if triton else Counter[str]()
        before, max_alive = self._max_alive
        if triton != before:
            max_alive = Counter()
        loaded = set(self._loader.records.read().triton_models())
        if triton == before:
            # The process of a model that was just loaded may have died before it was ever counted.
            for model in loaded - max_alive.keys():
                max_alive[model] = int(self._stubs.has_died(model))
        # Models that were unloaded are dropped, so a model that takes the name later starts at 0.
        self._max_alive = (triton, Counter({model: max(alive[model], max_alive[model]) for model in loaded}))
        for model in loaded:
            if alive[model] < max_alive[model] and self._clock() >= self._not_before.get(model, 0.0):
                self._not_before[model] = math.inf
                threading.Thread(
                    target=self._reload_in_turn, args=(model, triton, alive[model]), daemon=True
                ).start()

    def _reload_in_turn(self, model: str, triton: int | None, alive: int) -> None:
        """Reload one model after the other, but wait for one that takes long no longer than its turn."""
        got_turn = self._turn.acquire(timeout=TURN_S)
        try:
            self._not_before[model] = self._clock() + RELOAD_RETRY_S
            if self._stubs.triton() == triton:
                self._reload_if_dead(model, alive)
        finally:
            if got_turn:
                self._turn.release()

    def _reload_if_dead(self, model: str, alive: int) -> None:
        try:
            expected = self._loader.count_instances(model)
            if alive < expected:
                log.error(
                    "the process of a Python model has died: it is loaded again", extra={"model": model}
                )
                with self._stubs.replacing(model):
                    self._loader.reload(model)
                return
        except TriremeError as error:
            log.error("%s", error.sentence, extra={"model": model})
            return
        # No process has died: Triton had reloaded the model, and old and new processes ran side by side.
        self._max_alive[1][model] = expected
        self._not_before.pop(model, None)
