"""The one table of what a worker serves, by the names that callers use.

Loaders fill it: from what the start found, from the records of archives, or of versions. A request asks
:meth:`Models.use` for a model; that loads, chooses, makes and holds what the request needs until it ends.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from sm.client.base import Client
from sm.errors import ClientFailed, NotReady, StartError, TriremeError
from sm.invocation import Invocation, ModelLease, turn, wait
from sm.models.canary import CANARY, STABLE
from sm.models.load_records import LoadRecord
from sm.models.model_leases import ModelLeases
from sm.plugins import code_imports
from sm.plugins.checks import ModelMissing, UncheckedClient
from sm.plugins.sources import ClientSource, unload
from sm.polling import poll_until

#: How often a request looks up its model while that is unloaded and loaded again.
MAX_LOOKUPS = 10


class ResolvedModel(NamedTuple):
    """A model as one request uses it."""

    #: Its name in answers in Triton's own protocol.
    name: str
    #: None if it takes Triton's own protocol only.
    client: Client | None
    #: Triton's name of the model that requests in that protocol call; empty if there is only a client.
    entry: str


class TableEntry(NamedTuple):
    """A name in the table."""

    #: The model that requests get; with ``needs``, the one they get while none of these has been replaced.
    served: ResolvedModel
    #: The models whose records decide what a request gets; empty if nothing does.
    needs: tuple[str, ...] = ()
    #: The record of the model of this name, and of a new version that gets a share of the requests.
    record: LoadRecord | None = None
    canary: LoadRecord | None = None
    #: Why nobody can be answered.
    error: str = ""


class ServedTable(NamedTuple):
    """The models and clients that are served at one moment."""

    rows: Mapping[str, TableEntry]
    #: The loaded records by their ids, also those that no caller can name.
    records: Mapping[str, LoadRecord] = {}


class TableLoader(Protocol):
    """Fills the table."""

    @property
    def table(self) -> ServedTable:
        """The table as it is now: the same object while nothing has changed."""

    def load(self, name: str, invocation: Invocation | None) -> bool:
        """Wait until a name that is not in the table is in it. Returns False if it cannot be."""

    def create(self, first: Client | None, records: list[LoadRecord]) -> UncheckedClient:
        """Create the client for records, in place of the ``first`` one. Raises :class:`StartError`."""

    def explain(self, name: str) -> TriremeError:
        """Return the error for a name that is not in the table, or that has no client."""

    def default(self, requested: str) -> str:
        """Return the model of a request that names none. Raises :class:`StartError`."""


@dataclass
class ClientSlot:
    """A client that was made for records, or the reason why there is none."""

    #: The models that it calls, by Triton's names and its own.
    calls: frozenset[str]
    client: Client | None = None
    error: str = ""
    #: The client while it has not passed its check.
    unchecked: UncheckedClient | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Models:
    """The models and clients that a worker serves.

    Args:
        loader: Fills the table.
        leases: Keeps what requests use loaded; None if nothing is unloaded while it is used.
        forget: Called with Triton's names of unloaded models.
        is_closed: True if Triton has names that are no caller's.
        comes_again: True if the box loads a model again that Triton has lost.
    """

    def __init__(
        self,
        loader: TableLoader,
        leases: ModelLeases | None = None,
        forget: Callable[[Collection[str]], object] = lambda _: None,
        *,
        is_closed: bool = False,
        comes_again: bool = True,
    ) -> None:
        self._loader, self._leases, self._forget = loader, leases, forget
        self.is_closed, self.comes_again = is_closed, comes_again
        self._table, self._lock = loader.table, threading.Lock()
        #: The slots by the name of their client and the ids of their records.
        self._slots: dict[tuple[str, ...], ClientSlot] = {}

    def known(self, name: str) -> bool:
        """True if a model or a client of that name is served now. Has no effect."""
        return name in self._loader.table.rows

    def is_versioned(self, name: str) -> bool:
        """True if Triton may have the model under another name than its callers. Has no effect."""
        row = self._loader.table.rows.get(name)
        if row is None or row.record is None:
            return False
        return row.record.version != "" or row.record.entry not in ("", name)

    def use(self, name: str, invocation: Invocation | None) -> ResolvedModel | None:
        """Return the model of that name, to be used until the invocation ends; None if there is none.

        It may have to be loaded, or its client made: the request waits for that in its model's share.

        Raises:
            ClientFailed: Its client is broken.
            NotReady: It cannot be loaded now.
            Overloaded: Too many requests wait for it.
        """
        row = self._loader.table.rows.get(name)
        if row is not None and not row.needs and not row.error:
            return row.served
        return self._use(name, invocation, self.serve)

    def use_model(self, name: str, invocation: Invocation | None) -> ResolvedModel | None:
        """Do what :meth:`use` does, for a request in Triton's own protocol: no client is made or needed."""
        return self._use(name, invocation, self._model)

    def _use(
        self,
        name: str,
        invocation: Invocation | None,
        take: Callable[[TableEntry, Invocation | None], ResolvedModel | None],
    ) -> ResolvedModel | None:
        for _ in range(MAX_LOOKUPS):
            while (row := self.refresh().rows.get(name)) is None:
                if not self._loader.load(name, invocation):
                    return None
            served = take(row, invocation)
            if served is not None:
                return served
        raise NotReady(f"the model {name[:200]!r} is being unloaded and loaded again")

    def serve(self, row: TableEntry, invocation: Invocation | None) -> ResolvedModel | None:
        """Return what a request gets of a row; None if its model was unloaded meanwhile."""
        first, served = row.served.client, self._model(row, invocation)
        if row.error:
            raise ClientFailed(f"the client of {row.served.name!r} is broken: {row.error}")
        held = [record for name in row.needs if (record := self.hold(name, invocation)) is not None]
        records = [record for record in held if record.folder or record.client]
        if served is None or (first is None and not any(record.client for record in held)):
            return served
        client = self._client(first, records, invocation) if records else first
        return None if client is None else served._replace(client=client)

    def _model(self, row: TableEntry, invocation: Invocation | None) -> ResolvedModel | None:
        record = self.hold(row.needs[0], invocation) if row.needs else None
        if record is None:
            return None if row.record is not None else row.served._replace(client=None)
        return row.served._replace(client=None, entry=record.entry)

    def hold(self, name: str, invocation: Invocation | None) -> LoadRecord | None:
        """Return the record of a loaded model, the same for the whole invocation, and keep it loaded until
        that ends.
        """
        held = None if invocation is None else invocation.leases
        if held is not None and name in held:
            record: LoadRecord = held[name].record
            return record
        take = partial(self._take, name, invocation)
        return (take() or wait(partial(poll_until, take), invocation))[0]

    def _take(self, name: str, invocation: Invocation | None) -> tuple[LoadRecord | None] | None:
        """Return a loaded model's record, leased for the invocation; None while it is being unloaded."""
        row = self.refresh().rows.get(name)
        if row is None or row.record is None:
            return (None,)
        found, variant = row.record, ""
        held = None if invocation is None else invocation.leases
        if self._leases is None or invocation is None or held is None:
            return (found,)
        if row.canary is not None and row.canary.canary is not None:
            is_new = row.canary.canary.is_for(invocation)
            found, variant = (row.canary, CANARY) if is_new else (found, STABLE)
        if not self._leases.take(found.id):
            return None
        lease = ModelLease(found, partial(self._leases.release, found.id), variant)
        if not self._are_loaded([found]):
            lease.give_back()
            return None
        # Another record of the request may have been faster.
        first = held.setdefault(name, lease)
        if first is not lease:
            lease.give_back()
        return (first.record,)

    def explain(self, name: str) -> TriremeError:
        """Return the error for a request for a name that is not served, or that has no client."""
        return self._loader.explain(name)

    def clients(self) -> list[Client]:
        """Return the clients that exist, of each name the newest."""
        return list({client.name: client for client in self.all_clients()}.values())

    def all_clients(self) -> list[Client]:
        """Return the clients of all versions that exist, of each name the newest last."""
        return [client for client, _ in self._existing()]

    def make_clients(self) -> Iterator[Client]:
        """Yield the client of each name, also of those that no request has asked for."""
        for name in list(self._loader.table.rows):
            with contextlib.suppress(TriremeError):  # its callers get the reason
                served = self.use(name, None)
                if served is not None and served.client is not None:
                    yield served.client

    def default(self, requested: str) -> str:
        """Return the model of a request that names none; empty if there is no default."""
        return self._loader.default(requested)

    def is_repeatable(self, model: str) -> bool:
        """False if a client says that calls of this Triton model, or of its own, may not be sent twice."""
        records = self._loader.table.records.values()
        names = {model, *(record.model for record in records if record.entry == model)}
        return all(client.repeatable or names.isdisjoint(calls) for client, calls in self._existing())

    def refresh(self) -> ServedTable:
        """Return the table as it is now, and drop what belongs to records that were unloaded."""
        table = self._loader.table
        if table is not self._table:
            with self._lock:
                table = self._loader.table  # another thread may have seen a later one
                gone = [record for id_, record in self._table.records.items() if id_ not in table.records]
                self._table = table
                self._slots = {
                    key: slot for key, slot in self._slots.items() if table.records.keys() >= {*key[1:]}
                }
            for record in gone:
                self._forget([*record.models.values()])
            _unload_in_background(gone)
        return table

    def _existing(self) -> Iterator[tuple[Client, Iterable[str]]]:
        for row in self.refresh().rows.values():
            client = row.served.client
            if client is not None and not row.error:
                yield client, (client.name, *client.required_models())
        for slot in list(self._slots.values()):
            if slot.client is not None:
                yield slot.client, slot.calls

    def _are_loaded(self, records: list[LoadRecord]) -> bool:
        return self._loader.table.records.keys() >= {record.id for record in records}

    def _client(
        self, first: Client | None, records: list[LoadRecord], invocation: Invocation | None
    ) -> Client | None:
        """Return the client for records; None if one of them was unloaded meanwhile."""
        name = records[0].model if first is None else first.name
        key = (name, *(record.id for record in records))
        slot = self._slots.get(key)
        if slot is None:
            calls = {name, *(model for record in records for model in record.models.values())}
            slot = ClientSlot(frozenset(calls if first is None else {*calls, *first.required_models()}))
            with self._lock:
                slot = self._slots.setdefault(key, slot)
        if slot.client is None:
            # Only requests for this client wait.
            with turn(slot.lock, name, invocation):
                if slot.client is None and not slot.error:
                    self._make(slot, name, first, records)
        if slot.client is None:
            if self._are_loaded(records):
                raise ClientFailed(slot.error)
            return None
        return slot.client

    def _make(self, slot: ClientSlot, name: str, first: Client | None, records: list[LoadRecord]) -> None:
        """Make a client. Raises :class:`NotReady` if Triton does not serve its model now."""
        client = None
        try:
            slot.unchecked = unchecked = slot.unchecked or self._loader.create(first, records)
            unchecked.check()
            client = unchecked.client
        except ModelMissing as failure:
            if any(failure.model in record.names for record in records) and self._are_loaded(records):
                # Triton is loading it again. The next request asks again.
                raise NotReady(f"Triton does not serve the model of {name!r} now") from None
            slot.error = f"the client of {name!r} cannot be loaded: {failure}"
        except StartError as failure:
            slot.error = f"the client of {name!r} cannot be loaded: {failure}"
        if self._are_loaded(records):
            slot.client = client
            return
        # Its files and models are gone.
        slot.error = slot.error or "it has been unloaded"
        with self._lock:
            self._slots = {key: other for key, other in self._slots.items() if other is not slot}
        _unload_in_background(records)


def source_of(record: LoadRecord) -> ClientSource:
    """Return the client that came with a record."""
    return ClientSource(f"record_{record.id}", Path(record.client), record.kind)


def _unload_in_background(records: Iterable[LoadRecord]) -> None:
    """Unload in a thread: it may have to wait until another client has loaded, and no request should wait."""
    sources = [source_of(record) for record in records if record.client]
    if sources:
        threading.Thread(target=_unload, args=(sources,), daemon=True).start()


def _unload(sources: list[ClientSource]) -> None:
    """Forget the modules of clients."""
    for source in sources:
        unload(source)
        code_imports.forget_modules(source.home)
    # Collect now: classes and modules form reference cycles and may hold much memory.
    gc.collect()
