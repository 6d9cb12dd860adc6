"""The list of loaded archives: a file that the control plane writes and every worker reads.

It outlives workers, control plane and Triton: each of them, started again, finds in it what there was.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from sm.errors import UnknownModel
from sm.run_state import write_whole

#: Loaded models that an error names: there may be thousands.
MAX_NAMES = 20


@dataclass(frozen=True)
class Record:
    """One archive. Loaded again under the same name, it gets another ``id``."""

    #: What the platform calls it.
    name: str
    #: What list and get show: the archive's folder.
    url: str
    id: str
    #: Triton's name of the model that requests are for; empty if only the archive's client knows.
    entry: str
    #: Triton's names by the names in the archive, in the order in which they are loaded. Empty until the
    #: archive has been read.
    models: Mapping[str, str]
    #: The file of the archive's client (empty if it has none), as what it is imported if it is a toolkit's
    #: script, the folder in which it finds its models, and Triton's names by those that it may say.
    client: str = ""
    module: str = ""
    repository: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    #: The archive as its callers name it, where the platform said so.
    target: str = ""
    #: Where the platform put the archive. The box works on a copy; a Triton that is started again is not
    #: given the models of an archive that is gone.
    folder: str = ""
    #: False while it is being loaded or unloaded, and if that was cut short.
    loaded: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The records at one moment, by name."""

    records: Mapping[str, Record]

    def find(self, name: str) -> Record | None:
        """What is loaded under this name, the platform's or the callers' own."""
        record = self.records.get(name)
        if record is None or not record.loaded:
            record = self._targets.get(name)
        return record

    def loaded(self) -> Iterator[Record]:
        return (record for record in self.records.values() if record.loaded)

    def unknown(self, name: str, names_others: bool = True) -> UnknownModel:
        """The error for a caller of a model that is not loaded; it names some that are."""
        sentence = f"no model {name[:200]!r} is loaded" if name else "the request names no model"
        if not names_others:
            return UnknownModel(sentence)
        names = sorted(record.name for record in self.loaded())
        some = [shown[:200] for shown in names[:MAX_NAMES]]
        more = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
        return UnknownModel(f"{sentence}; loaded are: {', '.join(some) or 'none'}{more}", models=some)

    def triton_models(self) -> list[str]:
        """Triton's names of all that is loaded."""
        return [name for record in self.loaded() for name in record.models.values()]

    @cached_property
    def _targets(self) -> Mapping[str, Record]:
        return {record.target: record for record in self.loaded() if record.target}


EMPTY_SNAPSHOT = Snapshot({})


class Records:
    """The file. Reading it again costs one look at its inode while nothing has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen: tuple[object, Snapshot] = (None, EMPTY_SNAPSHOT)

    def read(self) -> Snapshot:
        """The same object for as long as the file is the same."""
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return EMPTY_SNAPSHOT
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        known, snapshot = self._seen
        if known != version:
            rows = json.loads(self._file.read_bytes())
            snapshot = Snapshot({row["name"]: Record(**row) for row in rows})
            self._seen = (version, snapshot)
        return snapshot

    def put(self, record: Record) -> None:
        """Add it, or have it in the place of the one of its name. For one process alone."""
        with self._lock:
            self._write({**self.read().records, record.name: record})

    def remove(self, name: str) -> None:
        with self._lock:
            self._write({key: record for key, record in self.read().records.items() if key != name})

    def _write(self, records: Mapping[str, Record]) -> None:
        write_whole(self._file, json.dumps([asdict(record) for record in records.values()]))
