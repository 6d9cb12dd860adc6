"""The clients of archives in a worker: created at first use, dropped when their archive is unloaded.

Workers are not notified. Each request checks whether the records have changed, which costs a ``stat``.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sm.client.base import Array, Client, ModelMetadata, Tensors, Triton
from sm.errors import BadInput, ClientFailed, NotReady, StartError, UnknownModel
from sm.invocation import Hold, Invocation, current, turn
from sm.models.holds import Holds
from sm.models.load_records import CANARY, EMPTY_SNAPSHOT, STABLE, Record, Records, Snapshot
from sm.plugins import registry
from sm.plugins.loading import ClientSource, load, plain_names, unload
from sm.plugins.registry import ModelMissing, Registry
from sm.plugins.toolkit import code_imports
from sm.polling import POLL_S
from sm.triton.transport import Transport


class RenamedModels:
    """A :class:`~sm.client.base.Triton` for one client; ``names`` maps the client's names to Triton's."""

    def __init__(self, triton: Triton, names: Mapping[str, str]) -> None:
        self._triton, self._names = triton, names

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        return self._triton.infer(self._name(model), inputs, version=version, outputs=outputs)

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        return self._triton.stream(self._name(model), inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return self._triton.metadata(self._name(model), version)

    def _name(self, model: str) -> str:
        if model not in self._names:
            raise UnknownModel(f"there is no model {model!r} in the archive, but {', '.join(self._names)}")
        return self._names[model]


#: How often a request looks up its client while the archive is unloaded and loaded again.
MAX_LOOKUPS = 3


def choose(stable: Record, canary: Record | None, request: Invocation) -> tuple[Record, str]:
    """Choose the version for a request: the same for all requests of one id, or of one session."""
    if canary is None or canary.canary is None:
        return stable, ""
    if request.session is None:
        is_chosen = canary.canary.takes(request.request_id)
    else:
        is_old = request.session.opened < canary.canary.since
        is_chosen = not is_old and canary.canary.takes(request.session.id)
    return (canary, CANARY) if is_chosen else (stable, STABLE)


@dataclass
class ClientSlot:
    """A client, or the reason why there is none."""

    record: Record
    client: Client | None = None
    error: str = ""
    #: The client while Triton does not serve its model.
    waiting: Client | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class LoadedClients(Mapping[str, Client]):
    """The clients of the loaded archives, by the archives' names."""

    def __init__(
        self,
        records: Records,
        triton: Transport,
        load: Callable[[str], bool] = lambda _: False,
        holds: Holds | None = None,
    ) -> None:
        """``load`` loads a model that is not loaded, if it can. With ``holds``, an invocation uses one record
        of each name and keeps it loaded until it ends.
        """
        self._records, self._triton, self._load, self._holds = records, triton, load, holds
        self._lock = threading.Lock()
        self._snapshot = EMPTY_SNAPSHOT
        self._slots: dict[str, ClientSlot] = {}

    def __getitem__(self, name: str) -> Client:
        record = self.find(name)
        if record is None or not record.client:
            raise KeyError(name)
        with self._lock:
            if record.id not in self._snapshot.ids:
                raise KeyError(name)
            slot = self._slots.setdefault(record.id, ClientSlot(record))
        if slot.client is None:
            with turn(slot.lock, name):
                is_new = slot.client is None and not slot.error
                if is_new and self._create_client(slot) and not self._is_loaded(record):
                    # The archive was unloaded meanwhile: its files and models are gone.
                    slot.client, slot.error = None, "it has been unloaded"
                    _unload_in_background([record])
        if slot.client is None:
            if not self._is_loaded(record):
                raise KeyError(name)
            raise ClientFailed(slot.error)
        return slot.client

    def __contains__(self, name: object) -> bool:
        record = self.find(str(name))
        return record is not None and bool(record.client)

    def __iter__(self) -> Iterator[str]:
        return (record.name for record in self.refresh().loaded() if record.client)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, name: str) -> Record | None:
        """Return the record of a name, the same for the whole invocation; None if there is no such model."""
        invocation = current()
        held = None if invocation is None else invocation.holds
        if held is not None and name in held:
            record: Record = held[name].record
            return record
        while True:
            snapshot = self.refresh()
            found, variant = snapshot.find(name), ""
            if found is None:
                if not self._load(name):
                    return None
                continue
            if self._holds is None or invocation is None or held is None:
                return found
            if snapshot.canaries:
                found, variant = choose(found, snapshot.canaries.get(name), invocation)
            if self._holds.take(found.id):
                hold = Hold(found, partial(self._holds.release, found.id), variant)
                if self._is_loaded(found):
                    # Another record of the request may have been faster.
                    first = held.setdefault(name, hold)
                    if first is not hold:
                        hold.give_back()
                    kept: Record = first.record
                    return kept
                hold.give_back()
            else:
                time.sleep(POLL_S)

    def made(self) -> list[Client]:
        """Return the clients that exist."""
        self.refresh()
        return [slot.client for slot in list(self._slots.values()) if slot.client is not None]

    def is_repeatable(self, model: str) -> bool:
        """False if a client says that calls of its archive's models may not be sent twice."""
        slots = (slot for slot in list(self._slots.values()) if model in slot.record.models.values())
        return all(slot.client is None or slot.client.repeatable for slot in slots)

    def refresh(self) -> Snapshot:
        """Return the current records. Drops clients, modules and metadata of archives that were unloaded."""
        if self._records.read() is not self._snapshot:
            with self._lock:
                snapshot = self._records.read()
                loaded = {record.id for record in snapshot.loaded()}
                removed = [record for record in self._snapshot.loaded() if record.id not in loaded]
                self._snapshot = snapshot
                for record in removed:
                    self._slots.pop(record.id, None)
                    self._triton.forget(record.models.values())
            clients = [record for record in removed if record.client]
            if clients:
                _unload_in_background(clients)
        return self._snapshot

    def _is_loaded(self, record: Record) -> bool:
        return record.id in self._records.read().ids

    def _create_client(self, slot: ClientSlot) -> bool:
        """Create a client, one at a time. Returns False if the archive was unloaded while this one waited."""
        record = slot.record
        source = _client_source(record)
        triton = RenamedModels(self._triton, record.names)
        try:
            with plain_names(source):
                if not self._is_loaded(record):
                    return False
                client = slot.waiting or load(source, triton, Path(record.repository))
                client.name = record.name
                slot.waiting = client
                registry.check(client, source, triton)
        except ModelMissing as failure:
            if failure.model in record.names and self._is_loaded(record):
                # Triton is loading it again. The next request asks again.
                raise NotReady(f"Triton does not serve the model of {record.name!r} now") from None
            slot.error = f"the client of {record.name!r} cannot be loaded: {failure}"
            return True
        except StartError as failure:
            slot.error = f"the client of {record.name!r} cannot be loaded: {failure}"
            return True
        slot.client = client
        return True


def _unload_in_background(records: list[Record]) -> None:
    """Unload in a thread: it may have to wait until another client has loaded, and no request should wait."""
    threading.Thread(target=_unload, args=(records,), daemon=True).start()


def _unload(records: list[Record]) -> None:
    """Forget the modules of clients."""
    for record in records:
        unload(_client_source(record))
        code_imports.forget_modules(_client_source(record).home)
    # Collect now: classes and modules form reference cycles and may hold much memory.
    gc.collect()


def _client_source(record: Record) -> ClientSource:
    return ClientSource(f"archive_{record.id}", Path(record.client), record.module)


@dataclass(frozen=True)
class LoadedRegistry(Registry):
    """A registry of the clients in archives instead of those found at start."""

    clients: LoadedClients
    #: True if errors may list the loaded models; False if the list of models is restricted.
    lists_models: bool = True

    def get(self, name: str) -> Client:
        for _ in range(MAX_LOOKUPS):
            client = self.clients.get(name)
            if client is not None:
                return client
            record = self.record(name)
            if not record.client:
                # Not a 404: that would tell the platform that the model is not loaded.
                raise BadInput(
                    f"the archive of {record.name!r} has no client: "
                    "send it the v2 protocol, a body with inputs"
                )
        raise NotReady(f"the model {name[:200]!r} is being unloaded and loaded again")

    def is_served(self, name: str) -> bool:
        return self.clients.find(name) is not None

    def made_clients(self) -> Iterable[Client]:
        return self.clients.made()

    def is_repeatable(self, model: str) -> bool:
        return self.clients.is_repeatable(model)

    def served_without_client(self, name: str) -> bool:
        record = self.clients.find(name)
        return record is not None and not record.client

    def triton_model(self, name: str) -> str:
        record = self.record(name)
        if not record.entry:
            raise BadInput(f"the archive of model {name!r} has no model that is called, only a client")
        return record.entry

    def name_in_answers(self, name: str) -> str:
        """Return the archive's name, as the official container does. Triton's may differ from it."""
        record = self.record(name)
        return record.target or record.name

    def record(self, name: str) -> Record:
        record = self.clients.find(name)
        if record is None:
            raise self.unknown(name)
        return record

    def unknown(self, name: str) -> UnknownModel:
        if name and self.loads_on_demand:
            return UnknownModel(f"the repository has no model {name[:200]!r}")
        return self.clients.refresh().unknown(name, self.lists_models)

    def default(self, requested: str) -> str:
        """Return the setting: no model is loaded when the box starts."""
        return requested
