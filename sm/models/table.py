"""The one table of what a worker serves, by the names that callers use.

Load records fill it, those of the box's own models, of their versions or of archives, and the clients that
were found at the start or by a reload. A request asks :meth:`Models.use` for a model; that loads, chooses,
makes and holds what the request needs until it ends.

Workers are not notified. A request for what may be unloaded or replaced checks whether the records have
changed, which costs a ``stat``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from sm.client.base import Client, Triton
from sm.errors import BadInput, ClientFailed, NotReady, StartError, TriremeError, UnknownModel
from sm.invocation import Invocation, ModelLease, current, turn, wait
from sm.models.canary import CANARY, STABLE
from sm.models.demand import Demand
from sm.models.load_records import LoadRecord, Snapshot
from sm.models.model_leases import ModelLeases
from sm.models.record_clients import ClientSlot, RenamedModels, create, unload_in_background
from sm.plugins.checks import ModelMissing
from sm.plugins.discovery import DiscoveredClients
from sm.polling import WATCH_S, poll_until

log = logging.getLogger(__name__)
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


class Models:
    """The models and clients that a worker serves.

    Args:
        read: Returns the records: the same snapshot while they are unchanged.
        triton: What the clients call.
        leases: Keeps what requests use loaded; None if nothing is unloaded while it is used.
        forget: Called with Triton's names of unloaded models.
        is_closed: True in multi-model mode: each archive has its own client and names, and Triton has names
            that are no caller's.
        demand: Loads a model that is not loaded; None if no request does.
        lists_models: True if errors may list the loaded archives.
    """

    def __init__(
        self,
        read: Callable[[], Snapshot],
        triton: Triton,
        leases: ModelLeases | None = None,
        forget: Callable[[Collection[str]], object] = lambda _: None,
        *,
        is_closed: bool = False,
        demand: Demand | None = None,
        lists_models: bool = True,
    ) -> None:
        self._read, self._leases, self._forget = read, leases, forget
        self.is_closed, self._demand, self._lists_models = is_closed, demand, lists_models
        #: True if the box loads a model again that Triton has lost.
        self.comes_again = demand is not None or not is_closed
        #: What the clients that are found call.
        self.triton = triton if is_closed or leases is None else RenamedModels(triton, self._current_name)
        #: Called after a change of what was found.
        self.on_change: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        #: The slots by the name of their client and the ids of their records.
        self._slots: dict[tuple[str, ...], ClientSlot] = {}
        self._fill(read(), DiscoveredClients({}))

    def _fill(self, snapshot: Snapshot, found: DiscoveredClients) -> None:
        self._snapshot, self.found = snapshot, found
        errors = found.errors.keys() - found.unserved.keys()
        names = dict.fromkeys((*snapshot.serving, *found.clients, *errors))
        self._rows: Mapping[str, TableEntry] = {name: self._row(name) for name in names}

    def _row(self, name: str) -> TableEntry:
        client, record = self.found.clients.get(name), self._snapshot.serving.get(name)
        called = client.required_models() if client else ()
        error = self.found.errors.get(name, "")
        # Elsewhere no record goes or is replaced, so a request need not look at them.
        may_change = self.is_closed or self._leases is not None
        if record is None:
            # A v2 request means the client's own model.
            entry = next(iter(called), name)
            needs = tuple(dict.fromkeys(called)) if may_change else ()
            return TableEntry(ResolvedModel(entry, client, entry), needs, error=error)
        # Answers call an archive by its own name, as the official container's do.
        served = ResolvedModel(record.target or name, client, record.entry)
        needs = tuple(dict.fromkeys((name, *called))) if may_change else ()
        return TableEntry(served, needs, record, self._snapshot.canaries.get(name), error)

    def put(self, found: DiscoveredClients) -> None:
        """Replace the clients that were found."""
        with self._lock:
            self._fill(self._snapshot, found)
        self.on_change()

    def refresh(self) -> Snapshot:
        """Return the records as they are now, and drop what belongs to those that were unloaded."""
        snapshot = self._read()
        if snapshot is not self._snapshot:
            with self._lock:
                snapshot = self._read()  # another thread may have seen a later one
                gone = [record for id_, record in self._snapshot.ids.items() if id_ not in snapshot.ids]
                self._slots = {
                    key: slot for key, slot in self._slots.items() if snapshot.ids.keys() >= {*key[1:]}
                }
                self._fill(snapshot, self.found)
            for record in gone:
                self._forget([*record.models.values()])
            unload_in_background(gone)
        return snapshot

    def known(self, name: str) -> bool:
        """True if a model or a client of that name is served now. Has no effect."""
        row = self._rows.get(name)
        is_lasting = row is not None and (not row.needs or row.record is None)
        return is_lasting or name in self._read().serving

    def is_versioned(self, name: str) -> bool:
        """True if Triton may have the model under another name than its callers. Has no effect."""
        record = self._read().serving.get(name)
        return record is not None and (record.version != "" or record.entry not in ("", name))

    def use(self, name: str, invocation: Invocation | None) -> ResolvedModel | None:
        """Return the model of that name, to be used until the invocation ends; None if there is none.

        It may have to be loaded, or its client made: the request waits for that in its model's share.

        Raises:
            ClientFailed: Its client is broken.
            NotReady: It cannot be loaded now.
            Overloaded: Too many requests wait for it.
        """
        row = self._rows.get(name)
        if row is not None and not row.needs and not row.error:
            return row.served
        return self._use(name, invocation, self.serve)

    def use_model(self, name: str, invocation: Invocation | None) -> ResolvedModel | None:
        """Do what :meth:`use` does, for a request in Triton's own protocol: no client is made or needed."""
        row = self._rows.get(name)
        if row is not None and not row.needs:
            return row.served
        return self._use(name, invocation, self._model)

    def _use(
        self,
        name: str,
        invocation: Invocation | None,
        take: Callable[[TableEntry, Invocation | None], ResolvedModel | None],
    ) -> ResolvedModel | None:
        for _ in range(MAX_LOOKUPS):
            self.refresh()
            while (row := self._rows.get(name)) is None:
                if not self._load(name, invocation):
                    return None
                self.refresh()
            served = take(row, invocation)
            if served is not None:
                return served
        raise NotReady(f"the model {name[:200]!r} is being unloaded and loaded again")

    def _load(self, name: str, invocation: Invocation | None) -> bool:
        """Wait until a name that is not in the table is in it. Returns False if it cannot be."""
        if self._demand is not None:
            return name != "" and self._demand.load(name, invocation)
        if (late := self.found.unserved.get(name)) is None:
            return False
        with self._lock:
            slot = self._slots.setdefault((name,), ClientSlot(frozenset()))
        with turn(slot.lock, name, invocation):
            if self.found.unserved.get(name) is not late:
                return True  # another request was faster, or it was found anew
            if time.monotonic() < slot.next_check:
                return False
            slot.next_check = time.monotonic() + WATCH_S  # each calls Triton
            if not late.can_serve():
                return False
            with self._lock:
                if self.found.unserved.get(name) is not late:
                    return True
                self._fill(self._snapshot, self.found.with_served(name))
        log.info("the client %r is served now: its model was missing when this worker started", name)
        self.on_change()
        return True

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
        if record is not None:
            return row.served._replace(client=None, entry=record.entry)
        return None if row.needs and row.record is not None else row.served._replace(client=None)

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
        snapshot = self.refresh()
        found, canary, variant = snapshot.serving.get(name), snapshot.canaries.get(name), ""
        held = None if invocation is None else invocation.leases
        if found is None or self._leases is None or invocation is None or held is None:
            return (found,)
        if canary is not None and canary.canary is not None:
            is_new = canary.canary.is_for(invocation)
            found, variant = (canary, CANARY) if is_new else (found, STABLE)
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

    def _current_name(self, model: str) -> str:
        """Return Triton's name of the version of a model that the request uses."""
        record = self.hold(model, current())
        return model if record is None else record.entry

    def clients(self) -> list[Client]:
        """Return the clients that exist, of each name the newest."""
        return list({client.name: client for client in self.all_clients()}.values())

    def all_clients(self) -> list[Client]:
        """Return the clients of all versions that exist, of each name the newest last."""
        return [client for client, _ in self._existing()]

    def make_clients(self) -> Iterator[Client]:
        """Yield the client of each name, also of those that no request has asked for."""
        for name in list(self._rows):
            with contextlib.suppress(TriremeError):  # its callers get the reason
                served = self.use(name, None)
                if served is not None and served.client is not None:
                    yield served.client

    def rows_of(self, record: LoadRecord) -> list[TableEntry]:
        """Return what is served with a new version: the clients that call its model, or its own one."""
        self.refresh()
        rows = self._rows
        calling = [
            name for name, client in self.found.clients.items() if record.model in client.required_models()
        ]
        if not calling and record.client:
            name = record.model
            return [rows.get(name) or TableEntry(ResolvedModel(name, None, name), (name,), record)]
        return [rows[name] for name in calling]

    def is_repeatable(self, model: str) -> bool:
        """False if a client says that calls of this Triton model, or of its own, may not be sent twice."""
        names = {model, self._read().by_entry.get(model, model)}
        return all(client.repeatable or names.isdisjoint(calls) for client, calls in self._existing())

    def _existing(self) -> Iterator[tuple[Client, Iterable[str]]]:
        self.refresh()
        for row in self._rows.values():
            client = row.served.client
            if client is not None and not row.error:
                yield client, (client.name, *client.required_models())
        for slot in list(self._slots.values()):
            if slot.client is not None:
                yield slot.client, slot.calls

    def _are_loaded(self, records: list[LoadRecord]) -> bool:
        return self._read().ids.keys() >= {record.id for record in records}

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
        if slot.client is None and self._are_loaded(records):
            raise ClientFailed(slot.error)
        return slot.client

    def _make(self, slot: ClientSlot, name: str, first: Client | None, records: list[LoadRecord]) -> None:
        """Make a client. Raises :class:`NotReady` if Triton does not serve its model now."""
        client = None
        try:
            slot.unchecked = slot.unchecked or create(first, records, self.triton, self.is_closed)
            slot.unchecked.check()
            client = slot.unchecked.client
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
        unload_in_background(records)

    def explain(self, name: str) -> TriremeError:
        """Return the error for a request for a name that is not served, or that has no client."""
        snapshot = self._read()
        if self.is_closed:
            return self._explain_archive(name, snapshot)
        found, models = self.found, snapshot.serving
        reason = f" ({found.left_out[name]})" if name in found.left_out else ""
        if name in models:
            return UnknownModel(
                f"model {name!r} has no client{reason}: send it the v2 protocol, a body with inputs"
            )
        exists = sorted({*found.clients, *(models if name else ())})
        unnamed = (
            "the request names no model (modelname in the JSON or in the query), and there is no default"
        )
        which = f"no model {name[:200]!r}{reason}" if name else unnamed
        return UnknownModel(f"{which}; there are: {', '.join(exists) or 'none'}", models=exists)

    def _explain_archive(self, name: str, snapshot: Snapshot) -> TriremeError:
        record = snapshot.serving.get(name)
        if record is None:
            if name and self._demand is not None:
                return UnknownModel(f"the repository has no model {name[:200]!r}")
            return snapshot.unknown(name, self._lists_models)
        if record.client:
            return NotReady(f"the model {name[:200]!r} is being unloaded and loaded again")
        # Not a 404: that would tell the platform that the model is not loaded.
        return BadInput(
            f"the archive of {record.name!r} has no client: send it the v2 protocol, a body with inputs"
        )

    def default(self, requested: str) -> str:
        """Return the model of a request that names none; empty if there is no default.

        It is what ``requested``, the setting, names; else the client that answers such requests, the only
        client, or the only model. Raises :class:`StartError` if there is none of the setting's name.
        """
        if self.is_closed:  # no model is loaded when the box starts
            return requested
        clients, models = self.found.clients, self._snapshot.serving
        exists = {*clients, *models, *self.found.errors}
        if requested and requested not in exists:
            raise StartError(
                f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={requested!r} is not served; there are: "
                f"{', '.join(sorted(exists)) or 'none'}."
            )
        choices = ([name for name, client in clients.items() if client.answers_unnamed], clients, models)
        return requested or next((next(iter(names)) for names in choices if len(names) == 1), "")


def models_of(clients: Mapping[str, Client], models: Iterable[str] = ()) -> Models:
    """Return a table of clients, and of models that Triton serves."""
    snapshot, triton = Snapshot.of_models(models), None
    table = Models(lambda: snapshot, triton)  # type: ignore[arg-type]  # no client is made
    table.put(DiscoveredClients(clients))
    return table
