"""Parse LibSVM text: ``label index:value index:value`` on each line."""

from __future__ import annotations

import io
import re
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sm.client.decode_budget import DECODED
from sm.errors import BadInput, TooLarge

TYPES = ("text/libsvm", "text/x-libsvm")
#: Bytes that the rows may take with every zero written out.
MAX_DENSE_BYTES = 2**29
#: Bytes of memory for each ``index:value`` while it is parsed.
BYTES_PER_ENTRY = 32
TOKEN = re.compile(r"\S+")
#: The highest index of a feature: SciPy's and XGBoost's indices have 32 bits.
MAX_INDEX = 2**31 - 2


@dataclass(frozen=True)
class Rows:
    """The entries of all lines in sequence. Line i begins at ``starts[i]``."""

    values: NDArray[np.float32]
    indices: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def first_index(self) -> int:
        """1 if no line has an index 0, as the format's own tools count; else 0."""
        return int(bool(len(self.indices)) and int(self.indices.min()) > 0)

    def dense(self, columns: int = 0) -> NDArray[np.float32]:
        """Return a float32 array [lines, columns] with all zeros written out.

        It has ``columns`` columns, or more if the highest index needs them. Raises :class:`TooLarge`.
        """
        needed = int(self.indices.max()) + 1 - self.first_index if len(self.indices) else 0
        shape = (self.count, max(columns, needed))
        size = 4 * shape[0] * shape[1]
        if size > MAX_DENSE_BYTES:
            raise TooLarge(
                f"{shape[0]:,} lines with indices up to {shape[1]:,} take {size / 2**20:,.0f} MiB of memory; "
                f"at most {MAX_DENSE_BYTES / 2**20:,.0f} MiB are accepted"
            )
        with DECODED.reserve(size):
            table = np.zeros(shape, np.float32)
            rows = np.repeat(np.arange(self.count), np.diff(self.starts))
            table[rows, self.indices - self.first_index] = self.values
        return table


def read(text: str) -> Rows:
    """Parse the rows of ``text``, without labels. :class:`BadInput` names the line with the error."""
    with DECODED.reserve(BYTES_PER_ENTRY * text.count(":")):
        return _read(text)


def _read(text: str) -> Rows:
    # Arrays, not lists: as Python objects, numbers and short lines take ten times the memory.
    values, indices, starts = array("d"), array("q"), array("q", [0])
    for number, line in enumerate(io.StringIO(text), 1):
        is_first = True
        for match in TOKEN.finditer(line.partition("#")[0]):
            token = match.group()
            is_label, is_first = is_first and ":" not in token and _is_number(token), False
            index, _, value = token.partition(":")
            if is_label or index == "qid":
                continue
            try:
                values.append(float(value))
                indices.append(int(index))
            except (ValueError, OverflowError):
                raise BadInput(f"line {number} is not LibSVM: {token[:50]!r} is not an index:value") from None
            if not 0 <= indices[-1] <= MAX_INDEX:
                raise BadInput(f"line {number} is not LibSVM: the index {index[:20]} is out of range")
        if not is_first:
            starts.append(len(values))
    if len(starts) == 1:
        raise BadInput("the body has no line of LibSVM")
    # Values beyond float32 become infinity.
    with np.errstate(over="ignore"):
        return Rows(np.array(values, np.float32), np.array(indices, np.int32), np.array(starts, np.int64))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
