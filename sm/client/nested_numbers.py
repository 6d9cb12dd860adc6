"""Convert nested lists from a caller into an array."""

from __future__ import annotations

from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

#: Bytes of an array of strings. NumPy reserves the longest string's size for every element, four bytes a
#: character: one string of a megabyte among a million numbers would take terabytes.
MAX_TEXT_BYTES = 2**26


def array_of(value: object) -> NDArray[Any]:
    """Return ``np.array(value)``.

    Raises:
        ValueError: NumPy refuses the lists, or their strings take more than :data:`MAX_TEXT_BYTES`.
    """
    level = [value]
    while (kinds := set(map(type, level))) == {list}:
        level = list(chain.from_iterable(cast("list[list[object]]", level)))
    if str in kinds:
        longest = max(len(item) for item in level if isinstance(item, str))
        if 4 * longest * len(level) > MAX_TEXT_BYTES:
            raise ValueError("the array of these strings would take too much memory")
    return np.array(value)
