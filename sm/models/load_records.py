"""The list of loaded models: a file that the control plane writes and every worker reads.

The file outlives workers, control plane and Triton. Each of them reads it when it is started again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from sm.errors import UnknownModel
from sm.models.canary import Canary
from sm.plugins.sources import FILE
from sm.run_state import write_atomically

#: Loaded models that an error names at most; there may be thousands.
MAX_NAMES = 20


class State(StrEnum):
    """The purpose of a loaded model."""

    #: It is being loaded or unloaded; or that was interrupted, or its caller no longer waits for it.
    CHANGING = "changing"
    #: A new version, of which the workers make their clients.
    STAGED = "staged"
    #: A new version that gets a share of the requests.
    CANARY = "canary"
    SERVES = "serves"
    #: An old version, which finishes the requests that it has.
    RETIRED = "retired"


@dataclass(frozen=True)
class LoadRecord:
    """One archive. If it is loaded again under the same name, it gets a new ``id``."""

    #: The platform's name of the archive; of a version that does not serve, one of its own.
    name: str
    #: The archive's folder, as list and get show it.
    url: str
    id: str
    #: Triton's name of the model that requests call; empty if the archive's client decides.
    entry: str
    #: Triton's names by the names in the archive, in load order. Empty until the archive has been read.
    models: Mapping[str, str]
    #: The client: its file (empty if there is none), the kind of its source, the folder in which
    #: it finds its models, and Triton's names by the names that it may use.
    client: str = ""
    kind: str = FILE
    repository: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    #: The archive's Target-Model, if the platform sent it.
    target: str = ""
    #: Where the platform put the archive; the box uses a copy. If the folder is gone, a restarted Triton does
    #: not get its models.
    folder: str = ""
    #: A digest of its files, for an archive that may be replaced.
    version: str = ""
    state: State = State.CHANGING
    #: The model of which it is a version beside the one that serves; else empty.
    version_of: str = ""
    #: The share of a new version beside the one that serves.
    canary: Canary | None = None
    #: Why newer files do not serve, by what they are: they were rolled back.
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def first(cls, name: str, url: str = "", version: str = "") -> LoadRecord:
        """Return the record of a model that the box has had since its start, under its own name."""
        return cls(name, url, f"first-{name}", name, {name: name}, version=version, state=State.SERVES)

    @property
    def model(self) -> str:
        """The name of the model of which this is a version."""
        return self.version_of or self.name

    @property
    def loaded(self) -> bool:
        return self.state is not State.CHANGING

    def beside(self, state: State) -> LoadRecord:
        """Return it as a version that does not serve: callers cannot name it."""
        return replace(self, name=f"{self.model}@{self.id}", target="", version_of=self.model, state=state)


@dataclass(frozen=True)
class Snapshot:
    """The records at one moment, by name."""

    records: Mapping[str, LoadRecord]

    @classmethod
    def of_models(cls, models: Iterable[str]) -> Snapshot:
        """Return the records of the models that a box has had since its start."""
        return cls({name: LoadRecord.first(name) for name in models})

    @cached_property
    def serving(self) -> Mapping[str, LoadRecord]:
        """The records that serve, by the platform's names and, where that is not one, by Target-Model."""
        found = [record for record in self.records.values() if record.state is State.SERVES]
        targets = {record.target: record for record in found if record.target}
        return {**targets, **{record.name: record for record in found}}

    def loaded(self) -> Iterator[LoadRecord]:
        return (record for record in self.records.values() if record.loaded)

    def unknown(self, name: str, list_loaded: bool = True) -> UnknownModel:
        """Return the error for a model that is not loaded. With ``list_loaded`` it names some that are."""
        sentence = f"no model {name[:200]!r} is loaded" if name else "the request names no model"
        if not list_loaded:
            return UnknownModel(sentence)
        names = sorted(record.name for record in self.loaded() if not record.version_of)
        listed_names = [other[:200] for other in names[:MAX_NAMES]]
        suffix = f" and {len(names) - len(listed_names)} more" if len(names) > len(listed_names) else ""
        return UnknownModel(
            f"{sentence}; loaded are: {', '.join(listed_names) or 'none'}{suffix}", models=listed_names
        )

    @cached_property
    def ids(self) -> Mapping[str, LoadRecord]:
        """The loaded records by their ids."""
        return {record.id: record for record in self.loaded()}

    @cached_property
    def by_entry(self) -> Mapping[str, str]:
        """The models by Triton's names of what their requests call."""
        return {record.entry: record.model for record in self.loaded()}

    @cached_property
    def canaries(self) -> Mapping[str, LoadRecord]:
        """The new versions that get a share of the requests, by model."""
        return {record.model: record for record in self.records.values() if record.state is State.CANARY}


EMPTY_SNAPSHOT = Snapshot({})


class LoadRecords:
    """Reads and writes the file. Reading an unchanged file costs one ``stat``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._cached: tuple[object, Snapshot] = (None, EMPTY_SNAPSHOT)

    def read(self) -> Snapshot:
        """Return a snapshot; the same object while the file is unchanged."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return EMPTY_SNAPSHOT
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        cached_version, snapshot = self._cached
        if cached_version != version:
            rows = json.loads(self._file.read_bytes())
            for row in rows:
                row["state"] = State(row["state"])
                row["canary"] = row["canary"] and Canary(**row["canary"])
            snapshot = Snapshot({row["name"]: LoadRecord(**row) for row in rows})
            self._cached = (version, snapshot)
        return snapshot

    def put(self, record: LoadRecord) -> None:
        """Add a record, or replace the one of its name. Only one process may call it."""
        self.change((record,))

    def remove(self, name: str) -> None:
        self.change((), (name,))

    def change(self, records: Iterable[LoadRecord], removed: Collection[str] = ()) -> None:
        """Remove names and put records in one step, so that a reader sees all of it or nothing."""
        with self._lock:
            kept = {name: record for name, record in self.read().records.items() if name not in removed}
            kept |= {record.name: record for record in records}
            write_atomically(self._file, json.dumps([asdict(record) for record in kept.values()]))


def is_complete(folder: Path) -> bool:
    """True if every link in a model's folder has a target.

    Triton waits for ever for a Python model whose file is gone, and then all other loads wait too.
    """
    return all(path.exists() for path in folder.rglob("*"))


def find_restorable(record: LoadRecord, repository: Path) -> list[str]:
    """Return Triton's names of the models whose files all exist; none if the archive itself is gone."""
    if not Path(record.folder).is_dir():
        return []
    return [name for name in record.models.values() if is_complete(repository / name)]
