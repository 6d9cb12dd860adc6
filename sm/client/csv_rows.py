"""A result as CSV: a line for each record, without a header, as batch transform joins it to its input."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sm.client.results import Boxes, ResultKind, Table, TableRows


def encode_csv(result: object, kind: ResultKind | None) -> bytes | None:
    """Return a result's lines, without the last line end; None if it has no form of one line.

    Args:
        result: Of a record. A table has a line for each of its rows, any other result one line: its values
            in their order.
        kind: What the client says of its results: found objects and spans are no line, as each record has
            another number of them.
    """
    if isinstance(result, TableRows):
        rows: Sequence[object] = result
    elif isinstance(result, np.ndarray) and result.ndim == 2:
        rows = list(result)
    elif isinstance(kind, Boxes | Table):
        return None
    else:
        rows = [result]
    text = io.StringIO()
    # Until Python 3.13 only the characters of the line end are quoted; a reader ends a line at each of both.
    writer = csv.writer(text, lineterminator="\r\n")
    lines = []
    try:
        for row in rows:
            writer.writerow(list(_cells(row)))
            lines.append(text.getvalue().removesuffix("\r\n"))
            text.seek(0)
            text.truncate()
    except (TypeError, UnicodeDecodeError):
        return None
    return "\n".join(lines).encode()


def _cells(value: Any, depth: int = 3) -> Iterator[object]:
    """Yield the values in a row. Raises TypeError for what has no place in a cell."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode()
    if value is None or isinstance(value, str | int | float):
        yield value
        return
    if not depth or not isinstance(value, Mapping | list | tuple):
        raise TypeError(f"{type(value).__name__} has no place in a row")
    for part in value.values() if isinstance(value, Mapping) else value:
        yield from _cells(part, depth - 1)
