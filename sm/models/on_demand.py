"""Load the models of a repository when requests ask for them, and unload others when memory runs short.

The box is its own platform: workers ask the control plane, which loads each model once for all who ask.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sm import hardware
from sm.errors import Conflict, NotReady, OutOfMemory, Overloaded, TriremeError, UnknownModel
from sm.invocation import NO_HEADERS, Listener
from sm.metrics import EVICTIONS, FETCHED_BYTES, LOAD_SECONDS, LOADS, MODELS, NO_MODEL
from sm.models.fetch.addresses import is_prefix, shown
from sm.models.load_records import LoadRecord
from sm.models.model_leases import last_used, touch
from sm.models.model_loader import PLAIN_NAME, ModelLoader
from sm.polling import POLL_S, WATCH_S, SharedQuestion
from sm.repository.models import may_be_model
from sm.run_state import Box, read_pid

log = logging.getLogger(__name__)
#: Models that are fetched and loaded at the same time.
PARALLEL_LOADS = 8
#: A load takes a processor for seconds, so there is a turn for each processor: callers of loaded models wait
#: less, and so do those of the models before. After so many seconds a load begins without: others hang.
TURN_TIMEOUT_S = 10.0
#: Seconds between two looks at the list of a repository in S3, and for which a failed load is not repeated.
LIST_INTERVAL_S, FAILURE_S = 10.0, 5.0
#: Seconds that somebody who wants the list waits for it, and a request for a model: it asks again.
LIST_PATIENCE_S, ASK_PATIENCE_S = 5.0, 0.5
#: Seconds that a model stays after its load or last use, so that those who asked for it find it; and that a
#: load waits until another model is idle.
MIN_IDLE_S, ROOM_PATIENCE_S = 0.5, 60.0
Listen = Callable[[Mapping[str, str]], Listener | None]
LOADED, LOADING, UNLOADED, FAILED = "loaded", "loading", "unloaded", "failed"


class Catalog:
    """The models that a repository has: the folders in a folder, or below a prefix in S3."""

    def __init__(self, source: str, cache: Path) -> None:
        self._source, self._cache, self._is_remote = source, cache, is_prefix(source)
        self._list_s3 = SharedQuestion[list[str]](
            lambda: json.loads(run_sources("--list", source)), LIST_INTERVAL_S, FAILURE_S
        )

    def names(self, patience_s: float = LIST_PATIENCE_S) -> list[str]:
        """Return the names of all models.

        Raises:
            Overloaded: The list has not come within ``patience_s``.
            NotReady: It could not be fetched a moment ago.
        """
        if self._is_remote:
            try:
                return [name for name in self._list_s3.ask(patience_s) if may_be_model(name)]
            except TimeoutError:
                raise Overloaded("the list of the models is still being fetched") from None
        folders = (path.name for path in Path(self._source).iterdir() if path.is_dir())
        return sorted(filter(may_be_model, folders))

    def has(self, name: str) -> bool:
        """True if there is a model of that name."""
        if not PLAIN_NAME.fullmatch(name) or not may_be_model(name):
            return False
        return name in self.names(ASK_PATIENCE_S) if self._is_remote else (Path(self._source) / name).is_dir()

    def fetch(self, name: str) -> Path:
        """Return the folder of a model. :class:`NotReady` if it cannot be fetched."""
        if not self._is_remote:
            return (Path(self._source) / name).resolve()
        return fetch(f"{self._source.rstrip('/')}/{name}/", self._cache, name)


def fetch(source: str, cache: Path, name: str = NO_MODEL) -> Path:
    """Fetch a repository or a model into the cache; return its folder. :class:`NotReady` if that fails."""
    result = json.loads(run_sources(source, str(cache)))
    FETCHED_BYTES.labels(MODELS.of(name)).inc(result["bytes"])
    if removed := result["removed_bytes"]:
        log.info("removed %.1f MB from %s to make room: no box used it", removed / 1e6, cache)
    return Path(result["repository"])


def run_sources(*arguments: str) -> str:
    """Fetch in a process of its own: boto3 takes memory that the control plane would keep."""
    process = subprocess.run(
        (sys.executable, "-m", "sm.models.fetch.model_cache", *arguments),
        capture_output=True, text=True, check=False,
        # The control plane's spans have the fetch; one of every poll would say nothing.
        env={**os.environ, "OTEL_SDK_DISABLED": "true"},
    )  # fmt: skip
    last_line = next(iter(process.stdout.splitlines()[-1:]), "")
    if process.returncode:
        raise NotReady(last_line or f"the models cannot be fetched: {shown(process.stderr[-200:])}")
    return last_line


@contextlib.contextmanager
def noted(listener: Listener | None, model: str, part: str) -> Iterator[None]:
    """Count the seconds of a part of a model's load, and tell the listener."""
    started, attributes = time.monotonic(), {"trireme.model": model}
    try:
        with listener.span(part, attributes, False, True) if listener else contextlib.nullcontext():
            yield
    finally:
        LOAD_SECONDS.labels(model, part.split()[0]).inc(time.monotonic() - started)


class OnDemand:
    """Loads and evicts. Runs in the control plane.

    Args:
        loader: Refuses a load for which there is no room.
        catalog: What can be loaded.
        leases: The folder of the workers' leases.
        pinned: A model that stays; empty for none.
        listen: Returns what hears the parts of a load, for the headers of the request that asked for it.
    """

    def __init__(
        self,
        loader: ModelLoader,
        catalog: Catalog,
        leases: Path,
        pinned: str = "",
        listen: Listen = lambda _: None,
    ) -> None:
        self.loader, self.catalog, self._leases, self._pinned = loader, catalog, leases, pinned
        self._listen = listen
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(PARALLEL_LOADS, "loads")
        self._turns = threading.Semaphore(hardware.cores())
        self._loading: set[str] = set()
        self._failures: dict[str, tuple[float, TriremeError]] = {}

    def ask(self, name: str, headers: Mapping[str, str] = NO_HEADERS) -> str:
        """Begin to load a model, unless it is loaded or being loaded; return its state.

        Args:
            name: Of the model.
            headers: Of the request; its trace goes on with the load.

        Raises:
            UnknownModel: The repository does not have it.
            TriremeError: Its last load has failed a moment ago.
        """
        if self._state(name) == LOADED:
            return LOADED
        if not self.catalog.has(name):
            raise UnknownModel(f"the repository has no model {name[:200]!r}")
        with self._lock:
            at, error = self._failures.get(name, (0.0, None))
            if error and time.monotonic() - at < FAILURE_S:
                raise error
            if name not in self._loading:
                if self._state(name) == LOADED:  # a load has ended since the first look
                    return LOADED
                self._loading.add(name)
                self._failures.pop(name, None)
                self._pool.submit(self._load, name, self._listen(headers))
        return LOADING

    def list(self) -> list[dict[str, str]]:
        """Return all models with their states."""
        return [self.describe(name) for name in self.catalog.names()]

    def failures(self) -> dict[str, str]:
        """Return why the last load of a model failed, by name, of those that nobody has asked for again."""
        return {name: error.sentence for name, (_, error) in self._failures.copy().items()}

    def describe(self, name: str) -> dict[str, str]:
        """Return a model's state; of one that failed with the reason. Raises :class:`UnknownModel`."""
        if not self.catalog.has(name):
            raise UnknownModel(f"the repository has no model {name[:200]!r}")
        state, (_, error) = self._state(name), self._failures.get(name, (0.0, None))
        reason = {"reason": error.sentence} if error and state == FAILED else {}
        return {"modelName": name, "state": state, **reason}

    def evict(self, name: str) -> None:
        """Unload a model. :class:`Conflict` if a request uses it."""
        record = self.loader.records.read().records.get(name)
        if record is None:
            raise UnknownModel(f"no model {name[:200]!r} is loaded")
        if not self.loader.unload_idle(record, self._leases):
            raise Conflict(f"the model {name[:200]!r} serves a request")

    def _state(self, name: str) -> str:
        if name in self.loader.records.read().serving:
            return LOADED
        return LOADING if name in self._loading else FAILED if name in self._failures else UNLOADED

    def _load(self, name: str, listener: Listener | None) -> None:
        label = MODELS.of(name)
        try:
            with noted(listener, label, "fetch"):
                folder = str(self.catalog.fetch(name))
            with (
                self.loader.using(Path(folder)),
                noted(listener, label, "load into Triton"),
                self._turn(),
            ):
                record = self._load_folder(name, folder)
            touch(self._leases, record.id)
            LOADS.labels(label, LOADED).inc()
        except Exception as error:
            LOADS.labels(label, FAILED).inc()
            log.error("%s cannot be loaded: %s", name, error)
            known = error if isinstance(error, TriremeError) else NotReady(f"{type(error).__name__}: {error}")
            self._failures[name] = (time.monotonic(), known)
        finally:
            self._loading.discard(name)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        has_turn = self._turns.acquire(timeout=TURN_TIMEOUT_S)
        try:
            yield
        finally:
            if has_turn:
                self._turns.release()

    def _load_folder(self, name: str, folder: str) -> LoadRecord:
        """Load a model, and unload others until there is room for it."""
        end = time.monotonic() + ROOM_PATIENCE_S
        while True:
            try:
                return self.loader.load(name, folder)
            except OutOfMemory as error:
                # A full disk does not get room by unloading; or it alone is too large.
                if isinstance(error.__cause__, OSError) or not self._make_room(end):
                    raise
            except (Conflict, Overloaded, NotReady) as error:
                # Leftovers are being removed, others are being loaded, or Triton is being started again.
                if time.monotonic() > end:
                    raise
                time.sleep(WATCH_S if isinstance(error, NotReady) else POLL_S)

    def _make_room(self, end: float) -> bool:
        """Unload the idle model that was used longest ago. Returns False if no model is loaded.

        Raises:
            Overloaded: None is idle before ``end``.
        """
        while time.monotonic() < end:
            loaded = [record for record in self.loader.records.read().loaded() if record.name != self._pinned]
            # A model that is being loaded can be unloaded when its load has ended.
            if not loaded and len(self._loading) == 1:
                return False
            latest = time.time() - MIN_IDLE_S
            used = {record.name: last_used(self._leases, record.id) for record in loaded}
            for record in sorted(loaded, key=lambda record: used[record.name]):
                # A model without a time was loaded this moment.
                is_idle = 0 < used[record.name] <= latest
                if is_idle and self.loader.unload_idle(record, self._leases):
                    EVICTIONS.labels(MODELS.of(record.name)).inc()
                    return True
            time.sleep(POLL_S)
        raise Overloaded("there is no room for it: all loaded models serve requests")


def models_bytes(box: Box) -> int:
    """Return the memory of Triton and of its models' processes."""
    triton = read_pid(box, "triton")
    return sum(map(hardware.anonymous_bytes, hardware.with_descendants(triton))) if triton else 0
