"""Read ``.npy`` bodies that a caller sent: nothing is unpickled, no size is trusted.

Not ``np.load``: that opens archives and pickles too, makes room for whatever the header claims, and raises
anything from ``TokenError`` to ``BadZipFile``.
"""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import BadInput

MAGIC = b"\x93NUMPY"
#: Of each version of the format: the bytes of the header's length, and the encoding of the header.
VERSIONS = {b"\x01\x00": (2, "latin1"), b"\x02\x00": (4, "latin1"), b"\x03\x00": (4, "utf-8")}
KEYS = {"descr", "fortran_order", "shape"}
#: Bytes of a header. NumPy's own limit, beyond which Python's parser may be made to crash.
MAX_HEADER_BYTES = 10_000
#: The largest size of a dimension beside one that is 0. NumPy multiplies the others nevertheless.
MAX_DIMENSION = 2**31


def read_npy(body: bytes) -> NDArray[Any]:
    """The array that a ``.npy`` body holds, writable. :class:`BadInput` for everything else.

    Arrays of objects are refused, and so is one of more bytes than the body has.
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
        # Odd escapes and old names of types are no news for our log.
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
