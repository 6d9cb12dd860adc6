"""Load and unload archives. Runs in the control plane only; one operation at a time under each name.

Each operation is recorded before it begins, so that the next process can undo one that was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sm.errors import (
    Conflict,
    DeadlinePassed,
    NotReady,
    OutOfMemory,
    Overloaded,
    TriremeError,
    UnknownModel,
)
from sm.models.archive_copy import lost_file
from sm.models.archive_layout import Archive, callable_names, resolve_folder
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.memory_room import MemoryRoom, needed_bytes
from sm.models.model_leases import alone
from sm.models.staging import Staging
from sm.plugins.sources import ClientSource, discover
from sm.polling import WATCH_S, Poll
from sm.repository.machine import Machine
from sm.repository.models import CODE
from sm.triton.model_control import CHANGING_STATES, HELD_STATES, ModelControl
from sm.triton.server import MAX_LOADS, MAX_STUCK_LOADS

log = logging.getLogger(__name__)
#: A name that can be a folder's name and part of a URL's path.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
#: Seconds that a load or unload of a name waits while it is being unloaded already.
UNLOAD_PATIENCE_S = 10.0
NO_CLIENTS: Mapping[str, ClientSource] = {}
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class ModelLoader:
    """Loads and unloads archives.

    Args:
        home: The folder below which archives must be; None for any folder.
        admit: Raises if nothing may be loaded now.
        room: The memory that the models share.
        machine: The machine that the models will run on.
        load_timeout: Seconds that a load may take.
        replace_triton: Starts Triton again, for the given reason.
        clients: The clients for archives of a name that bring none.
        keep: Called with the folders that the loaded archives come from, when they change: large files may be
            links to them, which a later load of the same archive needs.
    """

    def __init__(
        self,
        records: LoadRecords,
        staging: Staging,
        triton: ModelControl,
        *,
        home: Path | None,
        namespaced: bool = True,
        admit: Callable[[], None] = lambda: None,
        room: MemoryRoom | None = None,
        machine: Machine = Machine(),
        load_timeout: float = 300.0,
        replace_triton: Callable[[str], None] = lambda _: None,
        clients: Mapping[str, ClientSource] = NO_CLIENTS,
        keep: Callable[[Iterable[Path]], object] = lambda _: None,
    ) -> None:
        self.records, self._staging, self._triton = records, staging, triton
        self._home, self._namespaced, self._admit, self._machine = home, namespaced, admit, machine
        self._load_timeout, self._replace_triton, self._clients = load_timeout, replace_triton, clients
        self._room = room or MemoryRoom()
        self._lock = threading.Lock()
        #: The names that are being loaded or unloaded; True for unloading, perhaps by the box itself for lack
        #: of memory.
        self._busy: dict[str, bool] = {}
        #: The ids of records of which a model is loaded again. Unloading does not wait for that.
        self._reloading: set[str] = set()
        self._unloaded = threading.Condition(self._lock)
        self._keep, self._keep_lock = keep, threading.Lock()
        #: Folders that a load uses which has not ended, or not begun.
        self._in_use: list[Path] = []
        self._keep_sources()

    def load(self, name: str, url: str, target: str = "") -> LoadRecord:
        """Load the archive in the folder ``url``; ``target`` is its Target-Model, if known.

        Raises:
            Conflict: The name is taken.
            BadInput: The archive cannot be loaded.
            OutOfMemory: Memory or disk are full.
        """
        with self._claim_name(name):
            self._remove_leftovers(name)
            folder = resolve_folder(url, self._home) if self._home else Path(url).resolve()
            self._admit()
            started = time.monotonic()
            record = self._reserve(name, url, target)
            with self._beginning(record, folder):
                archive = self._read_copy(record, folder)
                if archive.plugin is None and name in self._clients:
                    archive = replace(archive, plugin=self._clients[name])
                record = self._load_archive(record, archive)
            log.info("loaded", extra={"model": name, "seconds": round(time.monotonic() - started, 2)})
            return record

    def load_beside(
        self,
        name: str,
        repository: Path,
        version: str,
        others: Path,
        prepare: Callable[[LoadRecord], None],
    ) -> LoadRecord:
        """Load a new version of a model of ``repository`` beside the one that serves.

        Args:
            name: Of the model.
            repository: Has the model, and perhaps its client in ``code/``.
            version: What its files are.
            others: A repository with the other models that the client may read.
            prepare: Called when Triton has loaded it. If it raises, the old version goes on serving.
        """
        identity, url = secrets.token_hex(4), str(repository / name)
        record = LoadRecord(name, url, identity, "", {}, folder=url, version=version).beside(State.CHANGING)
        with self.using(repository / name), self._claim_name(record.name):
            self.records.put(record)
            with self._beginning(record, repository):
                archive = self._read_copy(record, (repository / name).resolve(), is_model=True)
                if archive.plugin is None and (repository / CODE).is_dir():
                    code = self._staging.copy((repository / CODE).resolve(), identity, CODE)
                    for source in (source for source in discover((code,)) if source.name == name):
                        archive = replace(archive, plugin=source)
                record = self._load_archive(record, archive, f"{name}-{identity}", others)
                prepare(record)
            return record

    def take_over(self, record: LoadRecord) -> None:
        """Let a version take the place of the one that serves, which is retired."""
        old = self.records.read().records.get(record.model)
        retired = () if old is None else (old.beside(State.RETIRED),)
        new = replace(record, name=record.model, version_of="", state=State.SERVES, canary=None)
        self.records.change((new, *retired), (record.name,))

    def unload(self, name: str) -> None:
        """Unload an archive and wait until its models are out of memory. Raises :class:`UnknownModel`."""
        snapshot = self.records.read()
        if name not in snapshot.records:
            raise snapshot.unknown(name)
        with self._claim_name(name, unload=True):
            snapshot = self.records.read()
            record = snapshot.records.get(name)
            if record is None or not record.loaded:
                raise snapshot.unknown(name)
            started = time.monotonic()
            # From now on no request finds it.
            self.records.put(replace(record, state=State.CHANGING))
            try:
                self._unload_from_triton(record)
            except NotReady:
                # A restarted Triton has loaded it again.
                self.records.put(record)
                raise
            log.info("unloaded", extra={"model": name, "seconds": round(time.monotonic() - started, 2)})

    def unload_idle(self, record: LoadRecord, leases: Path) -> bool:
        """Unload an archive that no request uses. Returns True if it is gone."""
        with alone(leases, record.id) as is_idle:
            if is_idle:
                with contextlib.suppress(Conflict, UnknownModel):
                    self.unload(record.name)
            is_gone = all(record.id != other.id for other in self.records.read().records.values())
            if is_gone:
                (leases / record.id).unlink(missing_ok=True)
            return is_gone

    def reload(self, model: str) -> None:
        """Make Triton load one of its models again.

        Raises:
            Conflict: Its archive is being loaded or unloaded.
            OutOfMemory: There is no room. The archive is unloaded: its callers get a 404, and the platform
                loads it again when it has made room.
            UnknownModel: Triton has lost it, and its files are gone too. The archive is unloaded.
        """
        record = next((r for r in self.records.read().loaded() if model in r.models.values()), None)
        if record is None:
            return
        try:
            with self._claim_reload(record):
                state = self._triton.states().get(model)
                if state == "LOADING":
                    raise Conflict(f"Triton is still loading {model!r}")
                if state not in HELD_STATES and not Path(record.folder).is_dir():
                    raise UnknownModel(f"{record.folder} is gone, from which {model!r} was loaded")
                size = needed_bytes([self._staging.touch(model)])
                with self._room.reserve(record.name, size):
                    self._triton.load(model, seconds=self._load_timeout)
        except (OutOfMemory, UnknownModel):
            with contextlib.suppress(Conflict, UnknownModel):
                self.unload(record.name)
            raise

    def lost(self) -> list[str]:
        """Return the loaded models that Triton does not have: a restarted one could not load them."""
        try:
            states = self._triton.states()
        except TriremeError:  # it is starting
            return []
        models = [model for record in self.records.read().loaded() for model in record.models.values()]
        return [model for model in models if states.get(model) not in HELD_STATES]

    def reap(self) -> None:
        """Remove what is half loaded and nobody loads any more: the caller gave up, or the process died.

        If too many such loads hang, Triton is replaced.
        """
        records = self.records.read().records.values()
        left = [record for record in records if not record.loaded and record.name not in self._busy]
        if not left:
            return
        try:
            states = self._triton.states()
        except NotReady:  # the next Triton does not load them
            return
        for record in left:
            is_changing = any(states.get(model) in CHANGING_STATES for model in record.models.values())
            if is_changing or record.id in self._reloading:
                continue
            with contextlib.suppress(Conflict, Overloaded), self._claim_name(record.name):
                # It may have been loaded again meanwhile.
                if self.records.read().records.get(record.name) == record:
                    self._clean_up(record)
        stuck = [
            model for record in left for model in record.models.values() if states.get(model) == "LOADING"
        ]
        if len(stuck) >= MAX_STUCK_LOADS:
            self._replace_triton(f"{len(stuck)} loads do not end in Triton: it is started again")

    def watch(self) -> None:
        """Start a thread that calls :meth:`reap` at intervals."""
        Poll("unfinished-loads", WATCH_S, self.reap, first_s=0.0).start()

    @contextlib.contextmanager
    def using(self, folder: Path) -> Iterator[None]:
        """Keep a folder until the end of the block: a load may have to wait for room."""
        self._in_use.append(folder)
        self._keep_sources()
        try:
            yield
        finally:
            self._in_use.remove(folder)
            self._keep_sources()

    def _keep_sources(self) -> None:
        """Keep the folders of all archives, also those of which Triton may still be loading the models."""
        with self._keep_lock:
            records = self.records.read().records.values()
            self._keep([*self._in_use, *(Path(record.folder) for record in records if record.folder)])

    @contextlib.contextmanager
    def _claim_name(self, name: str, unload: bool = False) -> Iterator[None]:
        """Let nobody else load or unload a model in the block. A full disk is an error of the box in it."""
        with self._lock:
            self._unloaded.wait_for(lambda: not self._busy.get(name), UNLOAD_PATIENCE_S)
            if name in self._busy:
                raise Conflict(f"the model {name[:200]!r} is being loaded or unloaded")
            if len(self._busy) >= MAX_LOADS:
                raise Overloaded(f"{MAX_LOADS} models are being loaded or unloaded")
            self._busy[name] = unload
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE_ERRORS:
                raise OutOfMemory(f"there is no room in the run folder: {error.strerror}") from error
            raise
        finally:
            with self._lock:
                del self._busy[name]
                self._unloaded.notify_all()
            self._keep_sources()

    @contextlib.contextmanager
    def _claim_reload(self, record: LoadRecord) -> Iterator[None]:
        with self._lock:
            if record.name in self._busy or record.id in self._reloading:
                raise Conflict(f"the model {record.name[:200]!r} is being loaded or unloaded")
            self._reloading.add(record.id)
        try:
            yield
        finally:
            with self._lock:
                self._reloading.remove(record.id)

    def _remove_leftovers(self, name: str) -> None:
        """Remove what an unfinished load left. Raises :class:`Conflict` if the model is loaded."""
        record = self.records.read().records.get(name)
        if record is None:
            return
        is_reloading = record.id in self._reloading
        if record.loaded and (is_reloading or all(map(self._triton.ready, record.models.values()))):
            raise Conflict(f"the model {name[:200]!r} is loaded already")
        # A restarted Triton may have failed to load it. Callers get a 404, and the platform loads it again.
        self._clean_up(record)

    def _clean_up(self, record: LoadRecord) -> None:
        log.warning("the remains of an unfinished load are removed", extra={"model": record.model})
        self._undo(record)

    def _reserve(self, name: str, url: str, target: str) -> LoadRecord:
        """Record that a load begins. :class:`Conflict` if requests could confuse it with another model."""
        # Callers see the archive's own folder, ``/opt/ml/models/<hash>``.
        shown = str(self._home / Path(url).relative_to(self._home).parts[0]) if self._home else url
        with self._lock:
            record = LoadRecord(name, shown, secrets.token_hex(4), "", {}, target=target, folder=url)
            for other in self.records.read().records.values():
                _check_collision(record, other)
            self.records.put(record)
            return record

    def _name_models(self, record: LoadRecord, archive: Archive, desired: str) -> LoadRecord:
        """Choose names in Triton for the archive's models, and record them."""
        with self._lock:
            others = self.records.read().records.values()
            used_names = {model for other in others for model in other.models.values()}
            # A load that never ends keeps its name for as long as this Triton runs.
            used_names |= {model for model, state in self._triton.states().items() if state == "LOADING"}
            desired = desired or plain(record.target or record.name)
            names: dict[str, str] = {}
            # The entry chooses first. Free names are kept, as Python models call each other by name.
            for archive_name in sorted(archive.models, key=lambda each: each != archive.entry):
                name = desired if archive_name == archive.entry else plain(archive_name)
                if name in used_names and not self._namespaced:
                    raise Conflict(
                        f"a model {name!r} is loaded already, and "
                        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING=true"
                    )
                if name in used_names:
                    log.info("%s is called %s-%s in Triton: the name is taken", name, name, record.id)
                    name = f"{name}-{record.id}"
                names[archive_name] = name
                used_names.add(name)
            models = {archive_name: names[archive_name] for archive_name in archive.models}
            record = replace(record, entry=names.get(archive.entry, ""), models=models)
            self.records.put(record)
            return record

    def _read_copy(self, record: LoadRecord, folder: Path, is_model: bool = False) -> Archive:
        """Copy an archive first, and read the copy, which no other process changes."""
        source = Path(record.folder)
        copy = self._staging.copy(folder, record.id, source.name)
        return Archive.read(copy, source, self._machine, is_model)

    def _load_archive(
        self, record: LoadRecord, archive: Archive, desired: str = "", others: Path | None = None
    ) -> LoadRecord:
        """Load an archive's models under names that are free, the entry as ``desired`` if that is."""
        record = self._name_models(record, archive, desired)
        with self._room.reserve(record.model, needed_bytes(archive.models.values(), archive.on_cpu)):
            self._staging.add(archive, record.models)
            if archive.plugin or others:
                record = self._add_client(record, archive, others)
            end = time.monotonic() + self._load_timeout
            for archive_name in archive.roots:
                remaining = max(0.1, end - time.monotonic())
                try:
                    self._triton.load(record.models[archive_name], record.models.values(), remaining)
                except DeadlinePassed:
                    raise DeadlinePassed(
                        f"Triton has not loaded {record.name[:200]!r} within {self._load_timeout:g} s "
                        "(SAGEMAKER_STARTUP_TIMEOUT, at most 300)"
                    ) from None
            record = replace(record, state=State.STAGED if record.version_of else State.SERVES)
            self.records.put(record)
            return record

    def _add_client(self, record: LoadRecord, archive: Archive, others: Path | None) -> LoadRecord:
        """Return the record with the archive's client, and the folder in which that finds its models."""
        view, plugin = self._staging.create_view(archive, record.id, others), archive.plugin
        names = {
            name: record.models[archive_name]
            for archive_name, model in archive.models.items()
            for name in callable_names(model)
        }
        if plugin is None:
            return replace(record, repository=str(view), names=names)
        repository = str(archive.folder if plugin.takes_folder else view)
        return replace(record, client=str(plugin.file), kind=plugin.kind, repository=repository, names=names)

    def _unload_from_triton(self, record: LoadRecord) -> None:
        states = self._triton.states()
        is_loading = any(states.get(model) == "LOADING" for model in record.models.values())
        if is_loading or record.id in self._reloading:
            # Unloading it now would wait for its load, and without its files Triton would block all loads.
            self.records.change((record.beside(State.CHANGING),), (record.name,))
            return
        # The entry first: an ensemble before its steps.
        for model in reversed(list(record.models.values())):
            self._triton.unload(model)
        self._staging.remove(record.models, record.id)
        self.records.remove(record.name)

    @contextlib.contextmanager
    def _beginning(self, record: LoadRecord, source: Path) -> Iterator[None]:
        """Undo a load that fails. A file that is gone is the archive's fault: large ones are links to the
        ``source``.
        """
        try:
            yield
        except BaseException as error:
            self._undo(self.records.read().records[record.name])
            if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
                path = Path(os.fsdecode(error.filename))
                for place in (source, self._staging.folder_of(record.id)):
                    if path.is_relative_to(place):
                        raise lost_file(error, repr(str(path.relative_to(place))[-200:])) from None
            raise

    def _undo(self, record: LoadRecord) -> None:
        """Undo a load. If Triton does not release a model, the record stays for another attempt."""
        try:
            self._unload_from_triton(record)
        except NotReady:
            # A restarted Triton does not know the model.
            self._staging.remove(record.models, record.id)
            self.records.remove(record.name)
        except TriremeError as error:
            log.error("%s", error.sentence, extra={"model": record.name})


def _check_collision(record: LoadRecord, other: LoadRecord) -> None:
    """Raise :class:`Conflict` if two records share a name or Target-Model: a request must mean one model."""
    names = {plain(name) for name in (other.name, other.target) if name}
    for name in filter(None, (record.name, record.target)):
        if plain(name) in names:
            raise Conflict(
                f"{record.name[:200]!r} cannot be loaded: {name[:200]!r} is the name or Target-Model of "
                f"{other.name[:200]!r}, which is loaded already"
            )


def plain(name: str) -> str:
    """Return a name for Triton: unchanged if it can be a folder's name."""
    if PLAIN_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', name)[:150]}-{digest}"
