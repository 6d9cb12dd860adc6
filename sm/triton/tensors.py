"""Convert between NumPy arrays and Triton's datatypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sm.client.base import Array
from sm.errors import Unsupported, WrongTensor

#: Triton's datatype of strings. Each string has its own length, so there is no dtype and no known size.
STRINGS = "BYTES"

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


def datatype(array: Array) -> str:
    """Return Triton's name of an array's type. Raises :class:`WrongTensor` if it has none."""
    name = DATATYPES.get(array.dtype)
    if name is None:
        name = STRINGS if array.dtype.kind in "OSU" else DATATYPES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise WrongTensor(
            f"Triton has no datatype for arrays of {array.dtype}", "datatype", dtype=array.dtype
        )
    return name


def dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a Triton datatype."""
    if name not in DTYPES:
        raise Unsupported(f"arrays of Triton's datatype {name} are not supported")
    return DTYPES[name]


def byte_size(name: str, shape: Sequence[int]) -> int | None:
    """Return the bytes of a tensor; None if they depend on its content, or if a dimension is -1."""
    if name not in DTYPES or any(size < 0 for size in shape):
        return None
    return math.prod(shape) * DTYPES[name].itemsize


def to_bytes(array: Array) -> bytes:
    """Encode an array row by row, little-endian; each string after its length in four bytes."""
    if datatype(array) != STRINGS:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    parts: list[bytes] = []
    for item in array.ravel().tolist():
        text = item if isinstance(item, bytes) else str(item).encode()
        parts += (len(text).to_bytes(4, "little"), text)
    return b"".join(parts)


def from_bytes(raw: bytes, name: str, shape: Sequence[int]) -> Array:
    """Decode ``raw`` to a writable array of ``shape``; strings to an object array of ``bytes``."""
    if name != STRINGS:
        return np.frombuffer(bytearray(raw), dtype(name)).reshape(shape)
    items = np.empty(math.prod(shape), dtype=object)
    position = 0
    for index in range(items.size):
        start = position + 4
        position = start + int.from_bytes(raw[position:start], "little")
        items[index] = raw[start:position]
    return items.reshape(shape)
