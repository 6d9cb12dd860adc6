"""The results of a run: its records, stored as JSON, and the medians of their draws."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from bench.contestant import PROCESSES
from bench.measuring import Record
from trireme_extensions.convert.onnx_cpu.engines import BF16, INT8, processor_flags

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

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        document.pop("decoding", None)  # in results of November 2026
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
        return list(dict.fromkeys(getattr(record, name) for record in self.records))


def machine() -> dict[str, object]:
    """Describe the machine, with its load before the run: other work distorts the figures."""
    match = re.search("^model name.*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = match[1] if match else platform.machine()
    return {
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{PROCESSES} cores of {model}, {platform.system()} {platform.release()}",
        "instructions": ", ".join(sorted(processor_flags() & (BF16 | INT8))) or "neither bf16 nor int8",
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
