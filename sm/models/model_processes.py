"""Watch the processes of Triton's Python models while they load, and load models again whose process is gone.

Triton 2.51 does not notice a death: it reports the model as ready, fails its requests, and waits for ever
when the model is unloaded. Loading the model again gives it a new process and affects no other model. The
supervisor or a worker takes a model out (:mod:`sm.triton.generation`), and the control plane brings it back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from sm import hardware
from sm.errors import BadInput, TriremeError
from sm.metrics import HANGS, RELOADS, REPEATS
from sm.polling import Poll, at_most_every
from sm.repository.models import Model
from sm.run_state import Box
from sm.triton.generation import SharedGeneration, now
from sm.triton.python_models import (
    LOADING_OOM_SCORE,
    STUB_OOM_SCORE,
    DeadStub,
    StubWatch,
    model_of,
    triton_pid,
)

log = logging.getLogger(__name__)
#: Seconds between two searches for models that were taken out; where the supervisor wakes the search, it is a
#: safety net.
POLL_INTERVAL_S, WOKEN_POLL_INTERVAL_S = 0.2, 5.0
#: Seconds until a model that could not be loaded again is tried again: at most. At first it is 1 s.
MAX_RETRY_S = 10.0
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

    def alive(self, triton: int) -> set[str]:
        """Return the Python models that have a process, by their names in Triton."""
        listed = hardware.children(triton)
        before, known_pids = self._last_stubs
        pids = listed | known_pids if before == triton else listed
        models = {pid: model for pid in pids if (model := self._model_of(pid))}
        self._last_stubs = triton, frozenset(models)
        return set(models.values())

    def has_died(self, model: str) -> bool:
        """True if a Python model has no process any more, whatever Triton reports."""
        triton = triton_pid(self._box)
        return triton is not None and self._is_python(model) and model not in self.alive(triton)

    def _is_python(self, model: str) -> bool:
        try:
            return Model.read(self._box.served / model).backend == "python"
        except OSError:
            # It is being unloaded.
            return False

    def _model_of(self, pid: int) -> str:
        arguments = hardware.command_line(pid)
        model = model_of(arguments, self._box.served)
        # An instance's name ends with a number. While a model is loaded, Triton starts a process without one
        # to read the model's configuration, and ends it.
        return "" if model in arguments else model


class NeedsNewTriton(BadInput):
    """This Triton cannot load the model again, for example because it waits for a process that is dead."""


class ImportWatch:
    """Ends the load of a model whose process died at its import: Triton itself would wait for ever."""

    def __init__(self, box: Box, clock: Callable[[], float] = time.monotonic) -> None:
        self._box, self._clock = box, clock
        self._watch = StubWatch(box.served, clock)
        self._lock = threading.Lock()
        self._search_at_intervals = at_most_every(SEARCH_INTERVAL_S, self._search, clock)
        #: The models of each load that is under way.
        self._loads: list[frozenset[str]] = []
        #: The dead processes that ended a load.
        self._attributed: set[int] = set()

    @contextlib.contextmanager
    def watching(self, models: Collection[str]) -> Iterator[Callable[[], None]]:
        """Watch these models during their load. The yielded check raises :class:`BadInput` if one can never
        load.
        """
        before, load, began = {stub.pid for stub in self._find_dead()}, frozenset(models), now()
        with self._lock:
            self._loads.append(load)

        def check() -> None:
            self._watch.set_oom_score(load, LOADING_OOM_SCORE)
            dead = [
                stub
                for stub in self._find_dead()
                if stub.pid not in before | self._attributed and stub.born > began
            ]
            for stub in dead:
                is_own = stub.model in models if stub.model else self._must_be_from(load, stub, dead)
                if is_own and self._clock() - stub.since >= DEAD_GRACE_S:
                    self._attributed.add(stub.pid)
                    name = stub.model or next(iter(models))
                    reason = f"{stub.sentence}; its last lines are in the log"
                    raise NeedsNewTriton(f"Triton cannot load {name!r}: {reason}")

        try:
            yield check
        finally:
            self._watch.set_oom_score(load, STUB_OOM_SCORE)
            with self._lock:
                self._loads.remove(load)

    def _must_be_from(self, load: frozenset[str], stub: DeadStub, dead: Sequence[DeadStub]) -> bool:
        """True if each load without a recorded process has one dead, unnamed process, and ``stub`` is that of
        ``load``: they began in the same order.
        """
        unnamed = sorted((each for each in dead if not each.model), key=lambda each: each.born)
        with self._lock:
            without_stub = [models for models in self._loads if not models & self._watch.recorded_models]
        return len(without_stub) == len(unnamed) and (load, stub) in zip(without_stub, unnamed, strict=True)

    def _find_dead(self) -> tuple[DeadStub, ...]:
        with self._lock:  # what is recorded belongs to what was found
            dead = self._search_at_intervals()
            self._attributed &= {stub.pid for stub in dead}
            return dead

    def _search(self) -> tuple[DeadStub, ...]:
        triton = triton_pid(self._box)
        return self._watch.find(triton) if triton else ()


class Reloads:
    """Loads models again that were taken out, each in a thread of its own.

    Args:
        shared: Says which models were taken out; they are admitted there when they are back.
        names: Returns the names of all models that Triton may have.
        reload: Loads one model again and waits until it is ready.
        replace_triton: Starts Triton again, for the given reason.
    """

    def __init__(
        self,
        shared: SharedGeneration,
        names: Callable[[], Iterable[str]],
        reload: Callable[[str], None],
        replace_triton: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared, self._names, self._reload, self._clock = shared, names, reload, clock
        self._replace_triton = replace_triton
        #: Models that are being loaded, and when those that could not be loaded are tried again.
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        #: Held while a model is loaded again: many processes may have died at once, and memory may be short.
        self._turn = threading.Lock()

    def watch(self, wake: int | None = None) -> None:
        """Start a thread that calls :meth:`poll` when ``wake`` can be read; without it, often."""
        for model in self._names():
            for events in (RELOADS, HANGS, REPEATS):
                events.labels(model)  # a series that is 0 before the first one
        interval_s = POLL_INTERVAL_S if wake is None else WOKEN_POLL_INTERVAL_S
        Poll("reloads", interval_s, self.poll, at_once=True, wake=wake).start()

    def poll(self) -> None:
        """Start to load each model that was taken out."""
        if self._shared.serves_all:
            return  # without a look at the repository: this is called all the time
        for model in self._names():
            is_due = self._clock() >= self._not_before.get(model, 0.0)
            if self._shared.out_since(model) and is_due and model not in self._busy:
                self._busy.add(model)
                threading.Thread(target=self._load_in_turn, args=(model,), daemon=True).start()

    def _load_in_turn(self, model: str) -> None:
        """Load one model after the other, but wait for one that takes long no longer than its turn."""
        got_turn = self._turn.acquire(timeout=TURN_S)
        try:
            # Another Triton has loaded it.
            if self._shared.out_since(model):
                self._load(model)
        finally:
            self._busy.discard(model)
            if got_turn:
                self._turn.release()

    def _load(self, model: str) -> None:
        out_since, started = self._shared.out_since(model), self._clock()
        try:
            self._reload(model)
        except NeedsNewTriton as error:
            self._replace_triton(f"{error.sentence}: Triton is started again")
        except TriremeError as error:
            self._failures[model] += 1
            seconds = min(MAX_RETRY_S, 2.0 ** self._failures[model] / 2)
            self._not_before[model] = self._clock() + seconds
            log.error("%s; next try in %g s", error.sentence, seconds, extra={"model": model})
            # It was unloaded, as there is no room for it. Another may get its name.
            if model not in self._names():
                self._shared.admit(model, out_since)
        else:
            self._failures.pop(model, None)
            # A process of the new load may have died already.
            if self._shared.admit(model, out_since):
                RELOADS.labels(model).inc()
                seconds = round(self._clock() - started, 2)
                log.info("loaded again", extra={"model": model, "seconds": seconds})
