"""Replace models by new versions while the box serves them. Runs in the control plane.

A new version is loaded beside the old one, and each worker makes its client and compares its golden answers.
Only then new requests go to it: all of them or, as a canary, a share of them until it is promoted or rolled
back. Requests under way finish on the old one, which is unloaded after a while. If anything fails, the old
one goes on serving.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sm import hardware
from sm.entry_points import INSTALL_EXTENSIONS
from sm.errors import BadInput, Conflict, DeadlinePassed, TriremeError, UnknownModel
from sm.metrics import LOAD_SECONDS, MODELS, VERSIONS
from sm.model_processes.python_models import CALL
from sm.models.canary import Canary
from sm.models.load_records import LoadRecord, State
from sm.models.model_loader import ModelLoader
from sm.polling import SLOW_WATCH_S, WATCH_S, Poll, poll_until
from sm.repository import models
from sm.repository.ensembles import steps
from sm.run_state import Box, read_pid

log = logging.getLogger(__name__)
#: Seconds that somebody who asks for a new version waits while the repository is polled, which takes a fetch.
PUSH_PATIENCE_S = 10.0
#: The states of a new version, also as outcomes in the metrics.
SERVES, UNCHANGED, IS_CANARY, ROLLED_BACK = "serves", "unchanged", "canary", "rolled_back"
#: The sentence about a new version that was rolled back.
OF_ROLLED_BACK = "rolled back: {}. Put the old files back: a box that starts again serves what is there"
#: The door of what compares a model's two versions, and the verdicts about the new one.
JUDGES = "sm.canary_judges"
PASSED, WORSE, UNDECIDED = "passed", "worse", "undecided"
#: Answers by variant and class of status, then by upper bound in seconds, cumulative.
Counts = Mapping[str, Mapping[str, float]]
#: A row of it: a function of the folder with the workers' series, the model, and what was counted when the
#: canary began. Returns what is counted now, and the numbers of both versions since then with a ``verdict``
#: and its ``reason``.
CanaryJudge = Callable[[Path, str, Counts], tuple[Counts, dict[str, Any]]]


class Versions:
    """Looks for changes of a repository, and replaces what has changed.

    Args:
        loader: Loads into the box's Triton.
        box: The box.
        fetch: Returns the folder with the present content of the repository.
        drain_s: Seconds for which an old version stays loaded.
        timeout_s: Seconds for the workers to make their clients.
        judge: Compares a canary with the version that serves; None: there is no canary.
    """

    def __init__(
        self,
        loader: ModelLoader,
        box: Box,
        fetch: Callable[[], Path],
        drain_s: float,
        timeout_s: float,
        judge: CanaryJudge | None = None,
    ) -> None:
        self._loader, self._box, self._fetch = loader, box, fetch
        self._drain_s, self._timeout_s, self._judge = drain_s, timeout_s, judge
        self._lock, self._decision = threading.Lock(), threading.Lock()
        #: Why the last change of a model does not serve, by name.
        self.failures: dict[str, str] = {}
        #: Versions that failed, or were rolled back; none is tried again until the repository has others.
        self._refused: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        #: The last verdict about each canary, and when an old version may be unloaded, by record id.
        self._verdicts: dict[str, str] = {}
        self._ends: dict[str, float] = {}
        box.prepared_folder.mkdir(exist_ok=True)
        if not box.models_file.exists():
            first = box.first_versions.items()
            loader.records.change(LoadRecord.first(name, url, version) for name, (url, version) in first)
        for record in list(loader.records.read().records.values()):
            for version, reason in record.refused.items():
                self._refused[record.name], self.failures[record.name] = version, reason
            if record.state is State.STAGED:  # an earlier control plane was loading it
                loader.records.put(replace(record, state=State.RETIRED))
        Poll("canaries", SLOW_WATCH_S, self._judge_canaries).start()
        Poll("old-versions", WATCH_S, self._unload_old).start()

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
            seen = {name: models.digest(folder, name) for name in models.names(folder)}
            before, self._seen = self._seen, seen
            for name in (name for name, version in seen.items() if before.get(name) == version):
                with contextlib.suppress(TriremeError):
                    self._update(name, folder, again=False)

    def update(self, name: str, canary: Canary | None = None) -> str:
        """Replace one model if it has changed; return its state. Raises why the old one goes on serving.

        With ``canary`` the new version gets only a share of the requests.
        """
        if canary is not None and self._judge is None:
            raise BadInput(f"a canary needs an extension, which compares the versions: {INSTALL_EXTENSIONS}")
        if not self._lock.acquire(timeout=PUSH_PATIENCE_S):
            raise Conflict("a new version is being loaded")
        try:
            try:
                folder = self._fetch()
            except TriremeError as error:
                if name in self._loader.records.read().records:  # a caller may send any name
                    self.failures[name] = error.sentence
                raise
            if name not in models.names(folder):
                raise UnknownModel(f"the repository has no model {name[:200]!r}")
            return self._update(name, folder, again=True, canary=canary)
        finally:
            self._lock.release()

    def describe(self, name: str) -> dict[str, Any]:
        """Return what the list of models says of a model's versions."""
        snapshot = self._loader.records.read()
        serving, canary = snapshot.records.get(name), snapshot.canaries.get(name)
        row: dict[str, Any] = {"version_id": serving.id, "modelUrl": serving.url} if serving else {}
        if name in self.failures:
            row["version_error"] = self.failures[name]
        if canary is not None and canary.canary is not None:
            state = canary.canary
            facts = {
                "version_id": canary.id,
                "percent": state.percent,
                "auto": state.auto,
                "since": state.since,
            }
            row["canary"] = {**facts, **self._compare(name, state.counted)[1]}
        return row

    def promote(self, name: str, identity: str = "") -> None:
        """Let a model's canary serve all requests. Raises :class:`Conflict` if there is none.

        With ``identity`` it must be this one.
        """
        with self._decision:
            self._serve(self._find_canary(name, identity))

    def roll_back(self, name: str, reason: str, identity: str = "") -> None:
        """Let the old version serve all requests again. Raises :class:`Conflict` if there is no canary."""
        with self._decision:
            canary = self._find_canary(name, identity)
            retired = replace(canary, canary=None, state=State.RETIRED)
            stable = self._loader.records.read().records[name]
            # Polling must not take the same files again, even by the next control plane.
            refused = {canary.version: OF_ROLLED_BACK.format(reason)}
            self._loader.records.change((retired, replace(stable, refused=refused)))
            self._refused[name], self.failures[name] = canary.version, refused[canary.version]
        VERSIONS.labels(MODELS.of(name), ROLLED_BACK).inc()
        extra = {"model": name, "version": canary.id}
        log.warning("the canary is rolled back, and the old version serves on: %s", reason, extra=extra)

    def _compare(self, name: str, counted: Counts) -> tuple[Counts, dict[str, Any]]:
        assert self._judge is not None  # without it there is no canary
        return self._judge(self._box.metrics_folder, name, counted)

    def _find_canary(self, name: str, identity: str = "") -> LoadRecord:
        canary = self._loader.records.read().canaries.get(name)
        if canary is None or identity not in ("", canary.id):
            raise Conflict(f"{name[:200]!r} has no canary: sm push {name[:200]} --canary 10 starts one")
        return canary

    def _judge_canaries(self) -> None:
        """Promote or roll back a canary that is to end by itself; log each new verdict about another."""
        for name, record in self._loader.records.read().canaries.items():
            assert record.canary is not None
            _, found = self._compare(name, record.canary.counted)
            verdict, reason = found["verdict"], found["reason"]
            if record.canary.auto:
                with contextlib.suppress(Conflict):  # somebody was faster
                    if verdict == PASSED:
                        self.promote(name, record.id)
                    elif verdict == WORSE:
                        self.roll_back(name, reason, record.id)
            elif verdict != self._verdicts.get(record.id, UNDECIDED):
                level = logging.WARNING if verdict == WORSE else logging.INFO
                log.log(level, "the canary: %s", reason, extra={"model": name, "version": record.id})
            self._verdicts[record.id] = verdict

    def _unload_old(self) -> None:
        """Unload each old version whose time is over and whose last request has ended."""
        for record in list(self._loader.records.read().records.values()):
            now = time.monotonic()
            if record.state is State.RETIRED and now >= self._ends.setdefault(record.id, now + self._drain_s):
                with contextlib.suppress(TriremeError):
                    self._loader.unload_idle(record, self._box.leases_folder)

    def _update(self, name: str, folder: Path, again: bool, canary: Canary | None = None) -> str:
        version, snapshot = models.digest(folder, name), self._loader.records.read()
        old, running = snapshot.records.get(name), snapshot.canaries.get(name)
        if self._refused.get(name) != version:
            self._refused.pop(name, None)
        if running is not None:
            if not again and version != running.version and name not in self.failures:
                self.failures[name] = "another change waits for the end of the canary"
                log.info(self.failures[name], extra={"model": name})
            if again:
                raise Conflict(
                    f"{name!r} has a canary: end it first with sm push {name} --promote or --rollback"
                )
            return UNCHANGED
        if old is not None and old.version == version:
            self.failures.pop(name, None)
            return UNCHANGED
        if not again and self._refused.get(name) == version:
            return UNCHANGED
        if canary is not None and old is None:
            raise Conflict(f"no version of {name!r} serves yet: push it without --canary")
        started = time.monotonic()
        try:
            self._check_alone(name)
            record = self._loader.load_beside(
                name, folder, version, self._box.repository, self._wait_for_workers
            )
        except Exception as error:
            reason = error.sentence if isinstance(error, TriremeError) else f"{type(error).__name__}: {error}"
            self._refused[name], self.failures[name] = version, reason
            VERSIONS.labels(MODELS.of(name), "failed").inc()
            log.error("the old version serves on, as the new one fails: %s", reason, extra={"model": name})
            raise
        seconds = round(time.monotonic() - started, 2)
        LOAD_SECONDS.labels(MODELS.of(name), "load").inc(seconds)
        log.info("a new version is loaded", extra={"model": name, "version": record.id, "seconds": seconds})
        if canary is None:
            self._serve(record)
            return SERVES
        self.failures.pop(name, None)
        counted, _ = self._compare(name, {})
        canary = replace(canary, since=time.time(), salt=secrets.token_hex(), counted=counted)
        self._loader.records.put(replace(record, canary=canary, state=State.CANARY))
        VERSIONS.labels(MODELS.of(name), IS_CANARY).inc()
        log.info(
            "a canary gets %d %% of the requests", canary.percent, extra={"model": name, "version": record.id}
        )
        return IS_CANARY

    def _serve(self, record: LoadRecord) -> None:
        """Let a version that is loaded serve all requests, and retire the one that did."""
        name = record.model
        self._loader.take_over(record)
        self.failures.pop(name, None)
        VERSIONS.labels(MODELS.of(name), SERVES).inc()
        log.info("a new version serves", extra={"model": name, "version": record.id})

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

    def _wait_for_workers(self, record: LoadRecord) -> None:
        """Wait until each worker has made the version's client, and its golden answers are right."""
        folder = self._box.prepared_folder / record.id
        folder.mkdir()

        def are_ready() -> bool:
            # A name with a dot is a file that is being written.
            answers = {file.name: file.read_text() for file in folder.iterdir() if file.name.isdecimal()}
            if reason := next(filter(None, answers.values()), ""):
                raise BadInput(reason)
            data = read_pid(self._box, "data")
            workers = hardware.children(data) if data else set()
            return bool(workers) and all(str(worker) in answers for worker in workers)

        try:
            if not poll_until(are_ready, self._timeout_s):
                raise DeadlinePassed(f"not every worker has its client within {self._timeout_s:g} s")
        finally:
            # A worker that starts later need not prepare for it.
            shutil.rmtree(folder, ignore_errors=True)


def current_index(records: Mapping[str, LoadRecord], index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Triton's list of models under the names that callers use, without old and new versions."""
    current = [record for record in records.values() if not record.version_of]
    names = {model: record.name for record in current for model in record.models.values()}
    return [{**row, "name": names[row["name"]]} for row in index if row["name"] in names]
