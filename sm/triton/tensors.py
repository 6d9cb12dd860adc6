"""Convert between NumPy arrays and Triton's datatypes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sm.client.base import Array, ModelMetadata
from sm.client.tensor_roles import format_tensors
from sm.errors import BadInput, TensorFault, TriremeError, Unsupported, WrongTensor

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


def configured(name: str) -> str:
    """Return the datatype that a model's configuration calls ``TYPE_FP32``, or ``TYPE_STRING``."""
    return STRINGS if name == "TYPE_STRING" else name.removeprefix("TYPE_")


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
    if array.dtype.kind not in "OSU":
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


#: Beginnings of Triton's messages. The first one is needed because metadata does not tell optional inputs.
MISSING = re.compile(
    r"expected (?:number of inputs between [0-9]+ and [0-9]+|[0-9]+ inputs) but got [0-9]+ inputs "
)
BATCH_SIZE = re.compile(
    r"inference request (?:batch-size must be <= |to model '[^']*' must specify batch-size 1 )|"
    r"input '[^']*' (?:batch size does not match |has no shape but model requires batch dimension )"
)


class TensorMismatch(NamedTuple):
    """A tensor of a request that does not fit the model; ``array`` is set for a wrong datatype or shape."""

    fault: TensorFault
    sentence: str
    array: Array | None = None


def explain_refusal(
    refusal: BadInput, metadata: ModelMetadata, inputs: Mapping[str, Array], outputs: Collection[str]
) -> BadInput:
    """Turn ``refusal`` into a :class:`WrongTensor` if the request's tensors do not fit the model.

    If they fit, the model refused their content, and ``refusal`` is returned.
    """
    mismatch = next(_mismatches(refusal.sentence, metadata, inputs, outputs), None)
    if mismatch is None:
        return refusal
    tensors = map(format_tensors, (metadata.inputs.values(), metadata.outputs.values()))
    model_tensors = "the model has the inputs {} and the outputs {}".format(*tensors)
    dtype = None if mismatch.array is None else mismatch.array.dtype
    return WrongTensor(refusal.sentence, mismatch.fault, f"{mismatch.sentence}; {model_tensors}", dtype)


def _mismatches(
    refusal: str, metadata: ModelMetadata, inputs: Mapping[str, Array], outputs: Collection[str]
) -> Iterator[TensorMismatch]:
    for name in outputs:
        if name not in metadata.outputs:
            yield TensorMismatch("name", f"it asks {metadata.name!r} for an output {name!r}")
    # Names before shapes: only shapes may come from a caller.
    yield from sorted(input_mismatches(metadata, inputs), key=lambda mismatch: mismatch.fault != "name")
    if MISSING.match(refusal):
        missing = ", ".join(name for name in metadata.inputs if name not in inputs)
        yield TensorMismatch("name", f"it gives {metadata.name!r} no {missing}")
    rows = max((array.shape[0] for array in map(np.asarray, inputs.values()) if array.ndim), default=0)
    if 0 < metadata.max_batch_size < rows:
        sentence = (
            f"it gives {metadata.name!r} {rows} rows at once, which takes {metadata.max_batch_size}; "
            "self.triton.infer(…, split=True) sends them in parts"
        )
        yield TensorMismatch("batch", sentence)
    elif BATCH_SIZE.match(refusal):
        yield TensorMismatch("shape", refusal)


def input_mismatches(metadata: ModelMetadata, inputs: Mapping[str, Array]) -> Iterator[TensorMismatch]:
    """Yield the inputs that the model does not accept. They have a batch dimension if the model has one."""
    for name, value in inputs.items():
        if name not in metadata.inputs:
            yield TensorMismatch(
                "name",
                f"it gives {metadata.name!r} an input {name!r}, which has {', '.join(metadata.inputs)}",
            )
            continue
        expected, array = metadata.inputs[name], np.asarray(value)
        try:
            kind = datatype(array)
        except TriremeError:
            kind = str(array.dtype)
        if kind != expected.datatype:
            sentence = f"wrong dtype: it gives {metadata.name!r} {name!r} as {kind}, not {expected.datatype}"
            yield TensorMismatch("datatype", sentence, array)
        shape = (-1, *expected.shape) if metadata.max_batch_size else expected.shape
        if len(shape) != array.ndim or any(
            -1 not in sizes and sizes[0] != sizes[1] for sizes in zip(shape, array.shape, strict=True)
        ):
            sentence = (
                f"wrong shape: it gives {metadata.name!r} {name!r} as {list(array.shape)}, not {list(shape)}"
            )
            yield TensorMismatch("shape", sentence, array)
