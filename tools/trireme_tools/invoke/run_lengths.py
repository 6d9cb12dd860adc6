"""COCO's run lengths of a mask: column by column, and the first run is of pixels outside the object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

#: A letter has five bits of a number from this code on; the sixth says that another letter follows.
FIRST_LETTER, BITS, MORE, SIGN = 48, 5, 0x20, 0x10
#: From this run on a number is the difference to the run two before.
FIRST_DIFFERENCE = 3


def decode_runs(counts: str | Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Return the mask [height, width]. ValueError if the runs do not fill it."""
    lengths = list(_unpack(counts)) if isinstance(counts, str) else [int(length) for length in counts]
    if min(lengths, default=-1) < 0 or sum(lengths) != height * width:
        raise ValueError(f"a mask's runs do not fill {width} by {height} pixels")
    marks = np.arange(len(lengths)) % 2 == 1
    return np.repeat(marks, lengths).reshape(width, height).T


def _unpack(text: str) -> Iterator[int]:
    """Yield the lengths in COCO's compressed text."""
    before: list[int] = []
    letters = iter(text.encode())
    for letter in letters:
        value, shift, group = 0, 0, letter - FIRST_LETTER
        while True:
            value |= (group & (MORE - 1)) << shift
            shift += BITS
            if not group & MORE:
                break
            group = next(letters, FIRST_LETTER) - FIRST_LETTER
        if group & SIGN:
            value -= 1 << shift
        if len(before) >= FIRST_DIFFERENCE:
            value += before[-2]
        before.append(value)
        yield value
