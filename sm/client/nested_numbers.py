"""Convert nested lists that a caller sent to an array."""

from __future__ import annotations

from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

#: Bytes that an array of texts may take. NumPy gives each of them the room of the longest, four bytes a
#: character, so that a text of a megabyte beside a million numbers would be terabytes.
MAX_TEXT_BYTES = 2**26


def array_of(value: object) -> NDArray[Any]:
    """``np.array(value)``. ValueError also for texts that take more than :data:`MAX_TEXT_BYTES`."""
    level = [value]
    while (kinds := set(map(type, level))) == {list}:
        level = list(chain.from_iterable(cast("list[list[object]]", level)))
    if str in kinds:
        longest = max(len(item) for item in level if isinstance(item, str))
        if 4 * longest * len(level) > MAX_TEXT_BYTES:
            raise ValueError("texts of very different lengths")
    return np.array(value)
