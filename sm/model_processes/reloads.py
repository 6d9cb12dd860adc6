"""Load models again that are out, and watch the processes of Python models during their loads.

Triton 2.51 does not notice a death: it reports the model as ready, fails its requests, and waits for ever
when the model is unloaded. Loading the model again gives it a new process and affects no other model. The
supervisor publishes what is out (:mod:`sm.model_processes.generations`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from sm.errors import BadInput, TriremeError
from sm.metrics import HANGS, MODELS, RELOADS, REPEATS
from sm.model_processes.generations import SharedGeneration, now
from sm.model_processes.search import ImportWatch, Load, ModelProcesses
from sm.polling import SLOW_WATCH_S, Poll
from sm.repository.models import Model
from sm.run_state import Box, read_pid

log = logging.getLogger(__name__)
#: Seconds until a model that could not be loaded again is tried again: at most. At first it is 1 s.
MAX_RETRY_S = 10.0
#: Seconds that a model which is loaded again makes others wait.
TURN_S = 20.0
#: Seconds between two looks for models that are out: in shared memory, as often as the supervisor looks for
#: dead processes.
OUT_INTERVAL_S = 0.2
#: Seconds between two looks at the processes during loads: a dead one no longer tells its model.
SEARCH_INTERVAL_S = 0.05


class NeedsNewTriton(BadInput):
    """This Triton cannot load the model again, for example because it waits for a process that is dead."""


class LoadedProcesses:
    """The processes of the Python models that the control plane loads and unloads, in the Triton of now."""

    def __init__(self, box: Box) -> None:
        self._box, self._lock, self._next_search = box, threading.Lock(), 0.0
        self._imports = ImportWatch(ModelProcesses(0, box.served))

    def has_died(self, model: str) -> bool:
        """True if a Python model has no process any more, whatever Triton reports."""
        if not self._is_python(model):
            return False
        with self._lock:
            return self._search() and self._imports.processes.are_dead(model)

    @contextlib.contextmanager
    def watching(self, models: Collection[str]) -> Iterator[Callable[[], None]]:
        """Watch the processes of these models during their load.

        The yielded check raises :class:`NeedsNewTriton` if one can never load.
        """
        load = Load(frozenset(models), now())
        with self._lock:
            self._imports.begin(load)

        def check() -> None:
            with self._lock:
                if time.monotonic() >= self._next_search:
                    self._search()
            if load.failure:
                raise NeedsNewTriton(load.failure)

        try:
            yield check
        finally:
            with self._lock:
                self._imports.end(load)

    def _search(self) -> bool:
        """Look for the processes, and judge the loads that are under way. Returns False if no Triton runs."""
        triton = read_pid(self._box, "triton")
        if triton is None:
            return False
        if triton != self._imports.processes.triton:
            self._imports.processes = ModelProcesses(triton, self._box.served)
        self._imports.processes.search()
        self._imports.judge()
        self._next_search = time.monotonic() + SEARCH_INTERVAL_S
        return True

    def _is_python(self, model: str) -> bool:
        try:
            return Model.read(self._box.served / model).backend == "python"
        except OSError:
            # It is being unloaded.
            return False


class Reloads:
    """Brings models back that are out or lost, each in a thread of its own.

    Args:
        shared: Says which models are out; they are admitted there when they are back.
        names: Returns the names of all models that Triton may have.
        reload: Loads one model again and waits until it is ready.
        replace_triton: Starts Triton again, for the given reason.
        lost: Returns the models that should be loaded, and of which Triton knows nothing.
    """

    def __init__(
        self,
        shared: SharedGeneration,
        names: Callable[[], Iterable[str]],
        reload: Callable[[str], None],
        replace_triton: Callable[[str], None] = lambda _: None,
        lost: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared, self._names, self._reload, self._clock = shared, names, reload, clock
        self._replace_triton, self._lost = replace_triton, lost
        #: Models that are being loaded, and when those that could not be loaded are tried again.
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._next_question = 0.0
        #: Held while a model is loaded again: many processes may have died at once, and memory may be short.
        self._turn = threading.Lock()

    def watch(self) -> None:
        """Start a thread that calls :meth:`poll` at intervals."""
        for model in self._names():
            for events in (RELOADS, HANGS, REPEATS):
                events.labels(MODELS.of(model))  # a series that is 0 before the first one
        Poll("reloads", OUT_INTERVAL_S, self.poll, first_s=0.0).start()

    def poll(self) -> None:
        """Start to load each model that is out, or that Triton has lost."""
        # Without a look at the repository while all serve: this is called all the time.
        names = () if self._shared.serves_all else self._names()
        missing = {model for model in names if self._shared.out_since(model)}
        if self._clock() >= self._next_question:  # Triton is asked
            self._next_question = self._clock() + SLOW_WATCH_S
            missing |= {*self._lost()}
        for model in missing:
            is_due = self._clock() >= self._not_before.get(model, 0.0)
            if is_due and model not in self._busy:
                self._busy.add(model)
                threading.Thread(target=self._load_in_turn, args=(model,), daemon=True).start()

    def _load_in_turn(self, model: str) -> None:
        """Load one model after the other, but wait for one that takes long no longer than its turn."""
        got_turn = self._turn.acquire(timeout=TURN_S)
        try:
            # Another Triton has loaded it.
            if self._shared.out_since(model) or model in self._lost():
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
            if out_since and model not in self._names():
                self._shared.admit(model, out_since)
        else:
            self._failures.pop(model, None)
            # A process of the new load may have died already.
            if not out_since or self._shared.admit(model, out_since):
                RELOADS.labels(MODELS.of(model)).inc()
                seconds = round(self._clock() - started, 2)
                log.info("loaded again", extra={"model": model, "seconds": seconds})
