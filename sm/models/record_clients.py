"""Make the clients of load records in a worker: those of archives, and of a model's versions."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sm.client.base import Array, Client, ModelMetadata, Tensors, Triton
from sm.errors import UnknownModel
from sm.models.load_records import LoadRecord
from sm.plugins import code_imports
from sm.plugins.checks import UncheckedClient
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource, unload


class RenamedModels:
    """A :class:`~sm.client.base.Triton` whose models have other names; ``rename`` returns Triton's."""

    def __init__(self, triton: Triton, rename: Callable[[str], str]) -> None:
        self._triton, self._rename = triton, rename

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        return self._triton.infer(self._rename(model), inputs, version=version, outputs=outputs)

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        return self._triton.stream(self._rename(model), inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return self._triton.metadata(self._rename(model), version)


def name_in_archive(names: Mapping[str, str], model: str) -> str:
    """Return Triton's name of a model of an archive, whose ``names`` these are."""
    if model not in names:
        raise UnknownModel(f"there is no model {model!r} in the archive, but {', '.join(names)}")
    return names[model]


@dataclass
class ClientSlot:
    """A client that was made for records, or the reason why there is none."""

    #: The models that it calls, by Triton's names and its own.
    calls: frozenset[str]
    client: Client | None = None
    error: str = ""
    #: The client while it has not passed its check.
    unchecked: UncheckedClient | None = None
    #: Until then a client whose model was missing is not checked again.
    next_check: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


def create(
    first: Client | None, records: Sequence[LoadRecord], triton: Triton, is_archive: bool
) -> UncheckedClient:
    """Create the client for records as at the start: the code that came with one of them, else the class of
    the ``first`` client. Raises :class:`StartError`.
    """
    name, repository = records[0].model if first is None else first.name, Path(records[0].repository)
    code = next((record for record in records if record.client and record.model == name), None)
    if code is not None:
        source = source_of(code)
        triton = RenamedModels(triton, partial(name_in_archive, code.names)) if is_archive else triton
        client = load(source, triton, repository)
    else:
        assert first is not None
        is_in_model = first.folder.parent == first.repository
        folder = repository / first.folder.name if is_in_model else first.folder
        source = ClientSource(name, folder / "client.py")
        client = type(first)(triton, folder, repository)
    client.name = name
    return UncheckedClient(client, source, triton)


def source_of(record: LoadRecord) -> ClientSource:
    """Return the client that came with a record."""
    return ClientSource(f"record_{record.id}", Path(record.client), record.kind)


def unload_in_background(records: Iterable[LoadRecord]) -> None:
    """Unload clients in a thread: it may have to wait until another one has loaded, and no request should."""
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
