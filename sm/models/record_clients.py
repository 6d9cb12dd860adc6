"""The clients of archives in a worker: created at first use, dropped when their archive is unloaded.

Workers are not notified. Each request checks whether the records have changed, which costs a ``stat``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from sm.client.base import Array, Client, ModelMetadata, Tensors, Triton
from sm.errors import BadInput, NotReady, TriremeError, UnknownModel
from sm.invocation import Invocation
from sm.models.demand import Demand
from sm.models.load_records import EMPTY_SNAPSHOT, LoadRecord, LoadRecords
from sm.models.table import ResolvedModel, ServedTable, TableEntry, source_of
from sm.plugins.checks import UncheckedClient
from sm.plugins.loading import load


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


class ArchiveLoader:
    """Fills the table with the archives that are loaded.

    Args:
        records: Of the archives.
        triton: What the clients call.
        demand: Loads a model that is not loaded; None if the platform does.
        lists_models: True if errors may list the loaded models; False if the list of models is restricted.
    """

    def __init__(
        self, records: LoadRecords, triton: Triton, demand: Demand | None = None, lists_models: bool = True
    ) -> None:
        self._records, self._triton, self._demand = records, triton, demand
        self._lists_models = lists_models
        self._last = (EMPTY_SNAPSHOT, ServedTable({}))

    @property
    def table(self) -> ServedTable:
        snapshot, table = self._records.read(), self._last
        if snapshot is not table[0]:
            self._last = table = (
                snapshot,
                ServedTable(
                    {name: _row(name, record) for name, record in snapshot.serving.items()}, snapshot.ids
                ),
            )
        return table[1]

    def load(self, name: str, invocation: Invocation | None) -> bool:
        return name != "" and self._demand is not None and self._demand.load(name, invocation)

    def create(self, first: Client | None, records: list[LoadRecord]) -> UncheckedClient:  # noqa: ARG002
        (record,) = records
        source, triton = source_of(record), RenamedModels(self._triton, record.names)
        client = load(source, triton, Path(record.repository))
        client.name = record.name
        return UncheckedClient(client, source, triton)

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


def _row(name: str, record: LoadRecord) -> TableEntry:
    """Return the row of an archive. Answers call it by its own name, as the official container's do."""
    return TableEntry(ResolvedModel(record.target or record.name, None, record.entry), (name,), record)
