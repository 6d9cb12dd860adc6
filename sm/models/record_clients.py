"""The models of load records in a worker, with their clients: those of archives, and of a model's versions.

Workers are not notified. Each request checks whether the records have changed, which costs a ``stat``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from sm.client.base import Array, Client, ModelMetadata, Tensors, Triton
from sm.errors import BadInput, NotReady, TriremeError, UnknownModel
from sm.invocation import Invocation, current
from sm.models.demand import Demand
from sm.models.found_clients import RepositoryLoader
from sm.models.load_records import LoadRecord, LoadRecords, Snapshot
from sm.models.table import Models, ResolvedModel, ServedTable, TableEntry, source_of
from sm.plugins.checks import UncheckedClient
from sm.plugins.discovery import DiscoveredClients
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource


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


class CurrentModels(RenamedModels):
    """Calls the version of each model that the request uses."""

    def __init__(self, triton: Triton, models: Models) -> None:
        super().__init__(triton, {})
        self._models = models

    def _name(self, model: str) -> str:
        record = self._models.hold(model, current())
        return model if record is None else record.entry


class RecordLoader(RepositoryLoader):
    """Fills the table with the models of load records, and with the clients that were found.

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
            rows = {name: self._recorded(name, snapshot) for name in self._names()}
            self._last = last = (snapshot, found, ServedTable(rows, snapshot.ids))
        return last[2]

    def _recorded(self, name: str, snapshot: Snapshot) -> TableEntry:
        """Return a row that needs the model of its name, and those that its client calls."""
        row, record = self._row(name), snapshot.serving.get(name)
        called = row.served.client.required_models() if row.served.client else ()
        if record is None:
            return row._replace(needs=tuple(dict.fromkeys(called)))
        # Answers call an archive by its own name, as the official container's do.
        served = ResolvedModel(record.target or name, row.served.client, record.entry)
        needs = tuple(dict.fromkeys((name, *called)))
        return TableEntry(served, needs, record, snapshot.canaries.get(name), row.error)

    def create(self, first: Client | None, records: list[LoadRecord]) -> UncheckedClient:
        """Create a client as at the start: its class, or the code that came with a record."""
        name, repository = records[0].model if first is None else first.name, Path(records[0].repository)
        code = next((record for record in records if record.client and record.model == name), None)
        if code is not None:
            source, triton = source_of(code), self._triton_of(code)
            client = load(source, triton, repository)
        else:
            assert first is not None
            is_in_model = first.folder.parent == first.repository
            folder = repository / first.folder.name if is_in_model else first.folder
            source, triton = ClientSource(name, folder / "client.py"), self._triton
            client = type(first)(triton, folder, repository)
        client.name = name
        return UncheckedClient(client, source, triton)

    def _triton_of(self, record: LoadRecord) -> Triton:  # noqa: ARG002  # an archive's has names of its own
        """Return what the client that came with a record calls."""
        return self._triton

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


class ArchiveLoader(RecordLoader):
    """Fills the table with the archives that are loaded. Each brings its client and its models' names.

    Args:
        records: Of the archives.
        triton: What the clients call.
        demand: Loads a model that is not loaded; None if the platform does.
        lists_models: True if errors may list the loaded models; False if the list of models is restricted.
    """

    def __init__(
        self, records: LoadRecords, triton: Triton, demand: Demand | None = None, lists_models: bool = True
    ) -> None:
        super().__init__(records)
        self._triton, self._demand, self._lists_models = triton, demand, lists_models

    def load(self, name: str, invocation: Invocation | None) -> bool:
        return name != "" and self._demand is not None and self._demand.load(name, invocation)

    def _triton_of(self, record: LoadRecord) -> Triton:
        return RenamedModels(self._triton, record.names)

    def explain(self, name: str) -> TriremeError:
        snapshot = self._records.read()
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
        # No model is loaded when the box starts.
        return requested
