"""Read ``.npy`` bodies from callers, without unpickling and without trusting a size.

``np.load`` is not used: it also opens archives and pickles, allocates whatever the header claims, and raises
anything from ``TokenError`` to ``BadZipFile``.
"""

from __future__ import annotations

import ast
import math
import warnings
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sm.errors import BadInput

MAGIC = b"\x93NUMPY"
#: For each version of the format: how many bytes the header's length has, and the header's encoding.
VERSIONS = {b"\x01\x00": (2, "latin1"), b"\x02\x00": (4, "latin1"), b"\x03\x00": (4, "utf-8")}
KEYS = {"descr", "fortran_order", "shape"}
#: Bytes of a header. NumPy has the same limit: a longer one may crash Python's parser.
MAX_HEADER_BYTES = 10_000
#: The largest dimension. NumPy multiplies all dimensions, also if one is 0 and the array is empty.
MAX_DIMENSION = 2**31


def read_npy(body: bytes) -> NDArray[Any]:
    """Parse a ``.npy`` body into a writable array.

    Raises:
        BadInput: The body is not a ``.npy`` file, holds objects, or is shorter than its header says.
    """
    try:
        return _read(body)
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError):
        raise BadInput("the body is not a .npy array (archives and arrays of objects are refused)") from None


def _read(body: bytes) -> NDArray[Any]:
    version = body[len(MAGIC) : len(MAGIC) + 2]
    if not body.startswith(MAGIC) or version not in VERSIONS:
        raise ValueError("no magic")
    length_bytes, encoding = VERSIONS[version]
    start = len(MAGIC) + 2 + length_bytes
    length = int.from_bytes(body[start - length_bytes : start], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError("header too long")
    with warnings.catch_warnings():
        # Odd escapes and old type names of a caller need no line in the log.
        warnings.simplefilter("ignore")
        header = ast.literal_eval(body[start : start + length].decode(encoding).strip())
        if not isinstance(header, dict) or header.keys() != KEYS:
            raise ValueError("no header")
        dtype = np.lib.format.descr_to_dtype(header["descr"])  # type: ignore[no-untyped-call]
    shape, fortran_order = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or not all(
        type(size) is int and 0 <= size <= MAX_DIMENSION for size in shape
    ):
        raise ValueError("no shape")
    if type(fortran_order) is not bool or dtype.hasobject or not dtype.itemsize:
        raise ValueError("no plain array")
    count = math.prod(shape)
    if count * dtype.itemsize > len(body) - start - length:
        raise ValueError("truncated")
    flat = np.frombuffer(body, dtype, count, start + length) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C").copy(order="K")


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
