"""Explain why Triton refused a request, by comparing its tensors with the model's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sm.client.base import Array, ModelMetadata, TensorMetadata
from sm.errors import BadInput, TensorFault, TriremeError, WrongTensor
from sm.triton.tensors import datatype

#: Parts of Triton's messages. The first one is needed because metadata does not tell optional inputs.
MISSING = "missing required input"
BATCH_SIZE = re.compile(r"batch[- ]size")


class Mismatch(NamedTuple):
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
    model_inputs, model_outputs = _format_tensors(metadata.inputs), _format_tensors(metadata.outputs)
    model_tensors = f"the model has the inputs {model_inputs} and the outputs {model_outputs}"
    dtype = None if mismatch.array is None else mismatch.array.dtype
    return WrongTensor(refusal.sentence, mismatch.fault, f"{mismatch.sentence}; {model_tensors}", dtype)


def _mismatches(
    refusal: str, metadata: ModelMetadata, inputs: Mapping[str, Array], outputs: Collection[str]
) -> Iterator[Mismatch]:
    for name in outputs:
        if name not in metadata.outputs:
            yield Mismatch("name", f"it asks {metadata.name!r} for an output {name!r}")
    # Names before shapes: only shapes may come from a caller.
    yield from sorted(input_mismatches(metadata, inputs), key=lambda mismatch: mismatch.fault != "name")
    if MISSING in refusal:
        missing = ", ".join(name for name in metadata.inputs if name not in inputs)
        yield Mismatch("name", f"it gives {metadata.name!r} no {missing}")
    rows = max((array.shape[0] for array in map(np.asarray, inputs.values()) if array.ndim), default=0)
    if 0 < metadata.max_batch_size < rows:
        sentence = (
            f"it gives {metadata.name!r} {rows} rows at once, which takes {metadata.max_batch_size}; "
            "self.triton.infer(…, split=True) sends them in parts"
        )
        yield Mismatch("batch", sentence)
    elif BATCH_SIZE.search(refusal):
        yield Mismatch("shape", refusal)


def input_mismatches(metadata: ModelMetadata, inputs: Mapping[str, Array]) -> Iterator[Mismatch]:
    """Yield the inputs that the model does not accept. They have a batch dimension if the model has one."""
    for name, value in inputs.items():
        if name not in metadata.inputs:
            yield Mismatch(
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
            yield Mismatch("datatype", sentence, array)
        shape = (-1, *expected.shape) if metadata.max_batch_size else expected.shape
        if len(shape) != array.ndim or any(
            -1 not in sizes and sizes[0] != sizes[1] for sizes in zip(shape, array.shape, strict=True)
        ):
            sentence = (
                f"wrong shape: it gives {metadata.name!r} {name!r} as {list(array.shape)}, not {list(shape)}"
            )
            yield Mismatch("shape", sentence, array)


def _format_tensors(tensors: Mapping[str, TensorMetadata]) -> str:
    return ", ".join(f"{name} ({tensor.datatype} {list(tensor.shape)})" for name, tensor in tensors.items())
