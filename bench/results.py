"""The results of a run: its records, stored as JSON, and the medians of their draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.measuring import Record

#: The share of wrong and lost answers above which a measurement is not used.
FAILED = 0.01
#: A value of a record.
Value = Callable[[Record], float]


@dataclass
class Results:
    """``machine`` and ``settings`` in words, for people; ``missing``: why a contestant was not measured."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    about: Mapping[str, str]
    records: list[Record] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    #: Seconds of processor time that the box's own decoder takes for the sample of a model.
    decoding: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        return cls(**{**document, "records": [Record(**record) for record in document["records"]]})

    def of(self, **wanted: object) -> list[Record]:
        """Return the records with these values."""
        return [
            record
            for record in self.records
            if all(getattr(record, name) == value for name, value in wanted.items())
        ]

    def median(self, value: Value, **wanted: object) -> float | None:
        """Return the median of the draws; None if there is none, or more than :data:`FAILED` failed."""
        records = self.of(**wanted)
        if not records or any(record.wrong + record.lost > FAILED * record.answers for record in records):
            return None
        return median(map(value, records))

    def values(self, name: str) -> list[Any]:
        """Return the different values of a field, in the order of the records."""
        return distinct(getattr(record, name) for record in self.records)


def distinct(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
