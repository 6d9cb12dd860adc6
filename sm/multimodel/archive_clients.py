"""The clients of archives in a worker: created at first use, dropped when their archive is unloaded.

A worker is told nothing. Each request looks whether the records have changed, which costs a ``stat``.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm.client.base import Client
from sm.errors import BadInput, ClientFailed, NotReady, StartError, UnknownModel
from sm.multimodel.load_records import EMPTY_SNAPSHOT, Record, Records, Snapshot
from sm.multimodel.model_names import RenamedModels
from sm.plugins import registry
from sm.plugins.loading import ClientSource, load, plain_names, unload
from sm.plugins.registry import ModelMissing, Registry
from sm.plugins.toolkit import script_modules
from sm.triton.transport import Transport

#: Times that a request looks for its client while the archive is unloaded and loaded again.
MAX_LOOKUPS = 3


@dataclass
class Made:
    """A client, or why there is none."""

    record: Record
    client: Client | None = None
    fault: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class LoadedClients(Mapping[str, Client]):
    """The clients of what is loaded, by the names of the archives."""

    def __init__(self, records: Records, triton: Transport) -> None:
        self._records, self._triton = records, triton
        self._lock = threading.Lock()
        self._seen = EMPTY_SNAPSHOT
        self._made: dict[str, Made] = {}

    def __getitem__(self, name: str) -> Client:
        record = self.current().find(name)
        if record is None or not record.client:
            raise KeyError(name)
        with self._lock:
            now = self._seen.records.get(record.name)
            if now is None or now.id != record.id:
                raise KeyError(name)
            made = self._made.setdefault(record.id, Made(record))
        # Others go on meanwhile.
        with made.lock:
            is_new = made.client is None and not made.fault
            if is_new and self._make(made) and not self._is_loaded(record):
                # Unloaded meanwhile: its files and models went away under the client.
                made.client, made.fault = None, "it has been unloaded"
                _unload_aside([record])
        if made.client is None:
            if not self._is_loaded(record):
                raise KeyError(name)
            raise ClientFailed(made.fault)
        return made.client

    def __contains__(self, name: object) -> bool:
        record = self.current().find(str(name))
        return record is not None and bool(record.client)

    def __iter__(self) -> Iterator[str]:
        return (record.name for record in self.current().loaded() if record.client)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def current(self) -> Snapshot:
        """What is loaded now. What was and is no more is forgotten: clients, their modules, metadata."""
        if self._records.read() is not self._seen:
            with self._lock:
                snapshot = self._records.read()
                loaded = {record.id for record in snapshot.loaded()}
                gone = [record for record in self._seen.loaded() if record.id not in loaded]
                self._seen = snapshot
                for record in gone:
                    self._made.pop(record.id, None)
                    self._triton.forget(record.models.values())
            clients = [record for record in gone if record.client]
            if clients:
                _unload_aside(clients)
        return self._seen

    def _is_loaded(self, record: Record) -> bool:
        now = self._records.read().records.get(record.name)
        return now is not None and now.loaded and now.id == record.id

    def _make(self, made: Made) -> bool:
        """False if the archive was unloaded before its client's turn came: clients are made one at a time."""
        record = made.record
        found = _found(record)
        triton = RenamedModels(self._triton, record.names)
        try:
            with plain_names(found):
                if not self._is_loaded(record):
                    return False
                client = load(found, triton, Path(record.repository))
                client.name = record.name
                registry.check(client, found, triton)
        except (StartError, ModelMissing) as error:
            made.fault = f"the client of {record.name!r} cannot be loaded: {error}"
            return True
        made.client = client
        return True


def _unload_aside(records: list[Record]) -> None:
    """It may have to wait until another client is loaded. No request shall."""
    threading.Thread(target=_unload, args=(records,), daemon=True).start()


def _unload(records: list[Record]) -> None:
    """Forget the modules of clients."""
    for record in records:
        unload(_found(record))
        script_modules.forget_modules(_found(record).home)
    # Classes and modules refer to each other in circles, and may hold much: not some day, now.
    gc.collect()


def _package(record: Record) -> str:
    return f"archive_{record.id}"


def _found(record: Record) -> ClientSource:
    return ClientSource(_package(record), Path(record.client), record.module)


@dataclass(frozen=True)
class LoadedRegistry(Registry):
    """What archives bring, in the place of what a start finds."""

    clients: LoadedClients
    #: Whether an error names what is loaded. False where the list of models is restricted.
    names_others: bool = True

    def get(self, name: str) -> Client:
        for _ in range(MAX_LOOKUPS):
            client = self.clients.get(name)
            if client is not None:
                return client
            record = self.record(name)
            if not record.client:
                # Not a 404: to the platform that means that it is not loaded.
                raise BadInput(
                    f"the archive of {record.name!r} has no client: "
                    "send it the v2 protocol, a body with inputs"
                )
        raise NotReady(f"the model {name[:200]!r} is being unloaded and loaded again")

    def known(self, name: str) -> bool:
        return self.clients.current().find(name) is not None

    def served_without_client(self, name: str) -> bool:
        record = self.clients.current().find(name)
        return record is not None and not record.client

    def triton_model(self, name: str) -> str:
        record = self.record(name)
        if not record.entry:
            raise BadInput(f"the archive of model {name!r} has no model that is called, only a client")
        return record.entry

    def record(self, name: str) -> Record:
        record = self.clients.current().find(name)
        if record is None:
            raise self.unknown(name)
        return record

    def unknown(self, name: str) -> UnknownModel:
        return self.clients.current().unknown(name, self.names_others)

    def default(self, wanted: str) -> str:
        """Nothing is loaded yet."""
        return wanted
