"""COCO's compressed run lengths, back to a mask: what ``pycocotools.mask.decode`` does, without pycocotools.

The runs go down the columns, the first is of pixels outside the object. From the fourth on a run is written
as its difference to the one two before it; each number in groups of 5 bits, the lowest first, as letters
from ``0`` on, with a bit that says whether another group follows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The letter of 0, a group's bits and its highest one, which is the number's sign in the last group.
ZERO, BITS, SIGN, MORE = 48, 5, 0x10, 0x20


def decode(counts: bytes, height: int, width: int) -> NDArray[np.bool_]:
    """The mask [height, width]. ValueError if the runs are not as long as that."""
    lengths = runs(counts)
    if min(lengths, default=0) < 0 or sum(lengths) != height * width:
        raise ValueError(f"the runs make no mask of {height} by {width} pixels")
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(width, height).T


def runs(counts: bytes) -> list[int]:
    """The lengths of the runs."""
    lengths: list[int] = []
    number = shift = 0
    for letter in counts:
        group = letter - ZERO
        number |= (group & (MORE - 1)) << shift
        shift += BITS
        if group & MORE:
            continue
        if group & SIGN:
            number -= 1 << shift
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    return lengths
