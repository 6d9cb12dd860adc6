"""Decode COCO's compressed run lengths to a mask, as ``pycocotools.mask.decode`` does, without pycocotools.

The runs go down the columns; the first run is outside the object. From the fourth on, a run is stored as the
difference to the run two before it. A number is stored in groups of 5 bits, the lowest first; each group is
one character, counted from ``0``, and its sixth bit says whether another group follows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The character of the value 0, and the bits of a group.
ZERO, BITS = ord("0"), 5
#: The sign of a number, in its last group, and the bit that another group follows.
SIGN_BIT, CONTINUE_BIT = 0x10, 0x20


def decode(counts: bytes, height: int, width: int) -> NDArray[np.bool_]:
    """Return the mask [height, width]. Raises ValueError if the runs have another length."""
    lengths = read_runs(counts)
    if min(lengths, default=0) < 0 or sum(lengths) != height * width:
        raise ValueError(f"the runs make no mask of {height} by {width} pixels")
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(width, height).T


def read_runs(counts: bytes) -> list[int]:
    """Return the lengths of the runs."""
    lengths: list[int] = []
    number = shift = 0
    for character in counts:
        group = character - ZERO
        number |= (group & (CONTINUE_BIT - 1)) << shift
        shift += BITS
        if group & CONTINUE_BIT:
            continue
        if group & SIGN_BIT:
            number -= 1 << shift
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        number = shift = 0
    return lengths
