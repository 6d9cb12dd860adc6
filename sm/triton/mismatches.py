"""Explain why Triton refused a request, by comparing its tensors with the model's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sm.client.base import Array, ModelMetadata, TensorMetadata
from sm.errors import BadInput, TensorFault, TriremeError, WrongTensor
from sm.triton.tensors import datatype

#: Triton's own words. Whether an input may be left out, its metadata does not say.
MISSING = "missing required input"
BATCH_SIZE = re.compile(r"batch[- ]size")


class Mismatch(NamedTuple):
    """``array`` is the input that has the wrong datatype or shape."""

    fault: TensorFault
    sentence: str
    array: Array | None = None


def explain_refusal(
    refusal: BadInput, metadata: ModelMetadata, inputs: Mapping[str, Array], outputs: Collection[str]
) -> BadInput:
    """``refusal`` as a :class:`WrongTensor` where the request does not fit the model's tensors.

    As it is where it does: then the model refused what is in them.
    """
    found = next(_mismatches(refusal.sentence, metadata, inputs, outputs), None)
    if found is None:
        return refusal
    inputs_served, outputs_served = _listed(metadata.inputs), _listed(metadata.outputs)
    served = f"the model has the inputs {inputs_served} and the outputs {outputs_served}"
    dtype = None if found.array is None else found.array.dtype
    return WrongTensor(refusal.sentence, found.fault, f"{found.sentence}; {served}", dtype)


def _mismatches(
    refusal: str, metadata: ModelMetadata, inputs: Mapping[str, Array], outputs: Collection[str]
) -> Iterator[Mismatch]:
    for name in outputs:
        if name not in metadata.outputs:
            yield Mismatch("name", f"it asks {metadata.name!r} for an output {name!r}")
    # Names before shapes: those are nobody's data.
    yield from sorted(input_mismatches(metadata, inputs), key=lambda found: found.fault != "name")
    if MISSING in refusal:
        missing = ", ".join(name for name in metadata.inputs if name not in inputs)
        yield Mismatch("name", f"it gives {metadata.name!r} no {missing}")
    if BATCH_SIZE.search(refusal):
        yield Mismatch("shape", refusal)


def input_mismatches(metadata: ModelMetadata, inputs: Mapping[str, Array]) -> Iterator[Mismatch]:
    """Those of ``inputs``, batch dimension included, that the model does not take."""
    for name, given in inputs.items():
        if name not in metadata.inputs:
            yield Mismatch(
                "name",
                f"it gives {metadata.name!r} an input {name!r}, which has {', '.join(metadata.inputs)}",
            )
            continue
        wanted, array = metadata.inputs[name], np.asarray(given)
        try:
            kind = datatype(array)
        except TriremeError:
            kind = str(array.dtype)
        if kind != wanted.datatype:
            sentence = f"wrong dtype: it gives {metadata.name!r} {name!r} as {kind}, not {wanted.datatype}"
            yield Mismatch("datatype", sentence, array)
        shape = (-1, *wanted.shape) if metadata.max_batch_size else wanted.shape
        if len(shape) != array.ndim or any(
            -1 not in (one, other) and one != other for one, other in zip(shape, array.shape, strict=True)
        ):
            sentence = (
                f"wrong shape: it gives {metadata.name!r} {name!r} as {list(array.shape)}, not {list(shape)}"
            )
            yield Mismatch("shape", sentence, array)


def _listed(tensors: Mapping[str, TensorMetadata]) -> str:
    return ", ".join(f"{name} ({each.datatype} {list(each.shape)})" for name, each in tensors.items())
