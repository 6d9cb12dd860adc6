"""The results of the command: lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_row(out: Path, stage: str, row: str, **values: Any) -> None:
    """Append a result to gpu.jsonl, and print it."""
    line = json.dumps({"stage": stage, "row": row, **values}, default=str)
    with (out / "gpu.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line[:900], flush=True)
