"""The clients of a worker whose models are replaced while it serves: one for each version of a model."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import Client, Triton
from sm.errors import CommandError
from sm.invocation import Invocation, ModelLease, current, running
from sm.models.found_clients import RepositoryLoader
from sm.models.load_records import LoadRecord, LoadRecords, Snapshot, State
from sm.models.record_clients import RenamedModels
from sm.models.table import Models, ResolvedModel, ServedTable, TableEntry, source_of
from sm.plugins.checks import UncheckedClient
from sm.plugins.discovery import DiscoveredClients
from sm.plugins.golden import differences
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.run_state import Box, write_atomically

log = logging.getLogger(__name__)
#: Seconds for the golden answer of a new version.
GOLDEN_TIMEOUT_S = 60.0


class CurrentModels(RenamedModels):
    """Calls the version of each model that the request uses."""

    def __init__(self, triton: Triton, models: Models) -> None:
        super().__init__(triton, {})
        self._models = models

    def _name(self, model: str) -> str:
        record = self._models.hold(model, current())
        return model if record is None else record.entry


class VersionLoader(RepositoryLoader):
    """Fills the table with what was found, and with the versions of models that have come since.

    :meth:`start` gives it the clients of the versions that the box started with.
    """

    _triton: Triton

    def __init__(self, records: LoadRecords) -> None:
        self._records = records
        self._last: tuple[Snapshot, DiscoveredClients, ServedTable] | None = None
        super().__init__(DiscoveredClients({}))

    def start(self, found: DiscoveredClients, triton: Triton) -> None:
        """Serve the clients that were found. Those of versions call ``triton``."""
        self._triton = triton
        self.put(found)

    def _fill(self, found: DiscoveredClients) -> None:
        self.found = found

    @property
    def table(self) -> ServedTable:  # type: ignore[override]  # an attribute costs no call on the way of a request
        snapshot, last = self._records.read(), self._last
        if last is None or last[0] is not snapshot or last[1] is not self.found:
            found = self.found
            self.models = (*snapshot.serving,)
            rows = {name: self._versioned(name, snapshot) for name in self._names()}
            self._last = last = (snapshot, found, ServedTable(rows, snapshot.ids))
        return last[2]

    def _versioned(self, name: str, snapshot: Snapshot) -> TableEntry:
        """Return a row that needs the model of its name, and those that its client calls."""
        row, record = self._row(name), snapshot.serving.get(name)
        called = row.served.client.required_models() if row.served.client else ()
        needs = tuple(dict.fromkeys((name, *called) if record else called))
        return row._replace(needs=needs, record=record, canary=snapshot.canaries.get(name))

    def create(self, first: Client | None, records: list[LoadRecord]) -> UncheckedClient:
        """Create a client as at the start: its class, or the code that came with a version."""
        name, repository = records[0].model if first is None else first.name, Path(records[0].repository)
        code = next((record for record in records if record.client and record.model == name), None)
        if code is not None:
            source = source_of(code)
            client = load(source, self._triton, repository)
        else:
            assert first is not None
            is_in_model = first.folder.parent == first.repository
            folder = repository / first.folder.name if is_in_model else first.folder
            source = ClientSource(name, folder / "client.py")
            client = type(first)(self._triton, folder, repository)
        client.name = name
        return UncheckedClient(client, source, self._triton)

    def rows_of(self, record: LoadRecord) -> list[TableEntry]:
        """Return what is served with a new version: the clients that call its model, or its own one."""
        rows = self.table.rows
        calling = [
            name for name, client in self.found.clients.items() if record.model in client.required_models()
        ]
        if not calling and record.client:
            name = record.model
            return [rows.get(name) or TableEntry(ResolvedModel(name, None, name), (name,), record)]
        return [rows[name] for name in calling]


def prepare(models: Models, loader: VersionLoader, record: LoadRecord) -> None:
    """Make the clients of a new version, and compare their golden answers. Raises why it cannot serve."""
    for row in loader.rows_of(record):
        invocation = Invocation(time.monotonic() + GOLDEN_TIMEOUT_S)
        invocation.leases = {record.model: ModelLease(record, lambda: None)}
        try:
            with running(invocation):
                served = models.serve(row, invocation)
                if served is None or served.client is None:
                    raise CommandError(f"a model that {row.served.name!r} needs was unloaded")
                check_golden(served.client)
        finally:
            # The client may have used other models too.
            for lease in invocation.leases.values():
                lease.give_back()


def check_golden(client: Client) -> None:
    """Compare the answer to the client's sample with its golden one, if it has both."""
    payload, golden = (client.folder / "sample" / f"{part}.json" for part in ("payload", "golden"))
    if not (payload.is_file() and golden.is_file()):
        return
    value = json.loads(payload.read_bytes())
    members = value if isinstance(value, dict) else {client.payload.main_field: value}
    result = client.inference(client.payload.model_validate(members))
    plain = json.loads(json.dumps(result, default=_to_plain))
    wrong = list(differences(plain, json.loads(golden.read_bytes())))
    if wrong:
        raise CommandError(f"the golden answer of {client.name!r} differs: {'; '.join(wrong[:3])}")


def _to_plain(value: object) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def prepare_staged(models: Models, loader: VersionLoader, box: Box) -> bool:
    """Prepare new versions; tell the control plane of each why it cannot serve. True if there was one."""
    found = False
    for record in list(models.refresh().records.values()):
        answer = box.prepared_folder / record.id / str(os.getpid())
        is_waiting = record.state is State.STAGED and answer.parent.is_dir()
        if not is_waiting or answer.exists():
            continue
        found = True
        try:
            prepare(models, loader, record)
            reason = ""
        except BaseException as error:  # also a client's sys.exit()
            reason = str(error) or type(error).__name__
        try:
            write_atomically(answer, reason)
        except FileNotFoundError:
            log.info("the version %s was given up meanwhile", record.name)
    return found
