"""Replace models by new versions while the box serves them. Runs in the control plane.

A new version is loaded beside the old one, and each worker makes its client and compares its golden answers.
Only then new requests go to it. Requests under way finish on the old one, which is unloaded after a while. If
anything fails, the old one goes on serving.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sm import hardware
from sm.errors import BadInput, Conflict, DeadlinePassed, TriremeError, UnknownModel
from sm.metrics import VERSIONS
from sm.multimodel.holds import alone
from sm.multimodel.load_records import Record
from sm.multimodel.model_loader import SEPARATOR, Loader
from sm.repository import models
from sm.repository.ensembles import steps
from sm.run_state import Box, read_json
from sm.triton.python_models import CALL

log = logging.getLogger(__name__)
#: Seconds between two looks whether the workers are done, and whether an old version is idle.
LOOK_INTERVAL_S = 0.1
SERVES, UNCHANGED = "serves", "unchanged"


class Versions:
    """Looks for changes of a repository, and replaces what has changed.

    Args:
        loader: Loads into the box's Triton.
        box: The box.
        fetch: Returns the folder with the present content of the repository.
        drain_s: Seconds for which an old version stays loaded.
        timeout_s: Seconds for the workers to make their clients.
    """

    def __init__(
        self, loader: Loader, box: Box, fetch: Callable[[], Path], drain_s: float, timeout_s: float
    ) -> None:
        self._loader, self._box, self._fetch = loader, box, fetch
        self._drain_s, self._timeout_s = drain_s, timeout_s
        self._lock = threading.Lock()
        #: Why the last change of a model does not serve, by name.
        self.failures: dict[str, str] = {}
        #: What has failed is not tried again until it changes.
        self._refused: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        box.prepared_folder.mkdir(exist_ok=True)
        if not box.models_file.exists():
            loader.records.change(self._first_records(), ())
        for record in list(loader.records.read().records.values()):
            if SEPARATOR in record.name:  # an earlier control plane was replacing it
                self._retire_later(record)

    def look(self) -> None:
        """Replace every model that has changed and is complete: two looks see the same files.

        Failures are logged, and :attr:`failures` has them.
        """
        with self._lock:
            try:
                folder = self._fetch()
            except TriremeError as error:
                log.error("the models serve on as they are: %s", error.sentence)
                return
            seen = {name: digest(folder, name) for name in models.names(folder)}
            before, self._seen = self._seen, seen
            for name in (name for name, version in seen.items() if before.get(name) == version):
                with contextlib.suppress(TriremeError):
                    self._update(name, folder, again=False)

    def update(self, name: str) -> str:
        """Replace one model if it has changed; return its state. Raises why the old one goes on serving."""
        if not self._lock.acquire(blocking=False):
            raise Conflict("a new version is being loaded")
        try:
            try:
                folder = self._fetch()
            except TriremeError as error:
                self.failures[name] = error.sentence
                raise
            if name not in models.names(folder):
                raise UnknownModel(f"the repository has no model {name[:200]!r}")
            return self._update(name, folder, again=True)
        finally:
            self._lock.release()

    def _first_records(self) -> Iterator[Record]:
        for name in models.names(self._box.repository):
            version = digest(self._box.repository, name)
            url = str(self._box.repository / name)
            yield Record(name, url, f"first-{name}", name, {name: name}, version=version, loaded=True)

    def _update(self, name: str, folder: Path, again: bool) -> str:
        version, old = digest(folder, name), self._loader.records.read().records.get(name)
        if old is not None and old.version == version:
            self.failures.pop(name, None)
            return UNCHANGED
        if not again and self._refused.get(name) == version:
            return UNCHANGED
        started = time.monotonic()
        try:
            self._check_alone(name)
            record = self._loader.load_beside(
                name, folder, version, self._box.repository, self._wait_for_workers
            )
        except Exception as error:
            reason = error.sentence if isinstance(error, TriremeError) else f"{type(error).__name__}: {error}"
            self._refused[name], self.failures[name] = version, reason
            VERSIONS.labels(name, "failed").inc()
            log.error("the old version serves on, as the new one fails: %s", reason, extra={"model": name})
            raise
        self.failures.pop(name, None)
        VERSIONS.labels(name, SERVES).inc()
        seconds = round(time.monotonic() - started, 2)
        log.info("a new version serves", extra={"model": name, "version": record.id, "seconds": seconds})
        if old is not None:
            self._retire_later(self._loader.records.read().records[f"{name}{SEPARATOR}{old.id}"])
        return SERVES

    def _check_alone(self, name: str) -> None:
        """Raise :class:`BadInput` if another model calls this one within Triton, where it has one name."""
        for model in models.read(self._box.repository):
            if name in steps(model):
                raise BadInput(
                    f"{name!r} is a step of the ensemble {model.name!r}: it cannot be replaced alone"
                )
            for file in model.folder.glob("*/model.py") if model.name != name else ():
                text = file.read_text(errors="replace")
                if CALL in text and any(f"{quote}{name}{quote}" in text for quote in "'\""):
                    raise BadInput(
                        f"{name!r} is called by the model {model.name!r}: it cannot be replaced alone"
                    )

    def _wait_for_workers(self, record: Record) -> None:
        """Wait until each worker has made the version's client, and its golden answers are right."""
        folder = self._box.prepared_folder / record.id
        folder.mkdir()
        end = time.monotonic() + self._timeout_s
        while True:
            # A name with a dot is a file that is being written.
            answers = {file.name: file.read_text() for file in folder.iterdir() if file.name.isdecimal()}
            if reason := next(filter(None, answers.values()), ""):
                raise BadInput(reason)
            data = read_json(self._box.state_file, {}).get("processes", {}).get("data", {}).get("pid")
            workers = hardware.children(data) if data else set()
            if workers and all(str(worker) in answers for worker in workers):
                return
            if time.monotonic() > end:
                raise DeadlinePassed(f"not every worker has its client within {self._timeout_s:g} s")
            time.sleep(LOOK_INTERVAL_S)

    def _retire_later(self, record: Record) -> None:
        threading.Thread(target=self._retire, args=(record,), name="retire", daemon=True).start()

    def _retire(self, record: Record) -> None:
        """Unload an old version when its time is over and its last request has ended."""
        time.sleep(self._drain_s)
        while record.name in self._loader.records.read().records:
            with alone(self._box.holds_folder, record.id) as is_idle, contextlib.suppress(TriremeError):
                if is_idle:
                    self._loader.unload(record.name)
            time.sleep(LOOK_INTERVAL_S)
        (self._box.holds_folder / record.id).unlink(missing_ok=True)


def digest(repository: Path, name: str) -> str:
    """Return a digest of the model's files and of the clients in ``code/``: names, sizes and times."""
    files = (
        file
        for folder in (repository / name, repository / models.CODE)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    )
    rows = [
        (str(file.relative_to(repository)), (at := file.stat()).st_size, at.st_mtime_ns) for file in files
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def staged(record: Record, box: Box) -> bool:
    """True if a record is a new version that waits for the workers."""
    return SEPARATOR in record.name and (box.prepared_folder / record.id).is_dir()


def current_index(records: Mapping[str, Record], index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Triton's list of models under the names that callers use, without old and new versions."""
    current = [record for record in records.values() if SEPARATOR not in record.name]
    names = {model: record.name for record in current for model in record.models.values()}
    return [{**row, "name": names[row["name"]]} for row in index if row["name"] in names]
