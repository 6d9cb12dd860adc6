"""One inference: where each tensor travels, the request that says so, and the answer read back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from sm.base import Array, ModelMetadata
from sm.deadline import current
from sm.triton.sizes import Sizes
from sm.triton.tensors import STRINGS, byte_size, datatype, dtype, from_bytes, to_bytes

#: Bytes; what the widest vector instructions like.
ALIGNMENT = 64

Memory = NDArray[np.uint8]


@dataclass(frozen=True)
class Place:
    """Bytes of a region."""

    offset: int
    size: int


@dataclass
class Plan:
    """``inputs`` and ``outputs`` say which tensors lie in a region, and where; the others travel as bytes."""

    model: str
    version: str
    arrays: Mapping[str, Array]
    wanted: Sequence[str]
    kind: Hashable
    inputs: dict[str, Place] = field(default_factory=dict)
    outputs: dict[str, Place] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def make(
        cls,
        metadata: ModelMetadata,
        version: str,
        arrays: Mapping[str, Array],
        outputs: Sequence[str] | None,
        sizes: Sizes,
    ) -> Plan:
        """Everything of known size gets a place, one behind the other; ``size`` is what they take."""
        wanted = tuple(outputs or metadata.outputs)
        shapes = tuple(sorted((name, array.shape) for name, array in arrays.items()))
        plan = cls(metadata.name, version, arrays, wanted, (metadata.name, version, wanted, shapes))
        batch = next((shape[0] for _, shape in shapes if shape), 1)
        for name, array in arrays.items():
            if array.nbytes and datatype(array) != STRINGS:
                plan.inputs[name] = plan._append(array.nbytes)
        for name, size in sizes.expected(plan.kind, metadata, batch).items():
            if name in wanted:
                plan.outputs[name] = plan._append(size)
        return plan

    def _append(self, size: int) -> Place:
        place = Place(self.size, size)
        self.size += -(-size // ALIGNMENT) * ALIGNMENT
        return place

    def write(self, memory: Memory) -> None:
        """Copy the inputs into the region."""
        for name, place in self.inputs.items():
            array = self.arrays[name]
            np.copyto(_view(memory, place.offset, datatype(array), array.shape), array)

    def request(self, region: str = "") -> Any:
        """The message to Triton; without a region all tensors travel in it."""
        running = current()
        identity = running.request_id if running else ""
        message = pb.ModelInferRequest(model_name=self.model, model_version=self.version, id=identity)
        for name, array in self.arrays.items():
            tensor = message.inputs.add(name=name, datatype=datatype(array), shape=array.shape)
            if region and name in self.inputs:
                _refer(tensor, region, self.inputs[name])
            else:
                message.raw_input_contents.append(to_bytes(array))
        for name in self.wanted:
            tensor = message.outputs.add(name=name)
            if region and name in self.outputs:
                _refer(tensor, region, self.outputs[name])
        return message

    def read(self, response: Any, memory: Memory | None = None) -> dict[str, Array]:
        """The output arrays: those with a place as views of the region's ``memory``, if it had one."""
        arrays: dict[str, Array] = {}
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            place = self.outputs.get(tensor.name)
            if memory is None or place is None:
                arrays[tensor.name] = from_bytes(raw, tensor.datatype, tensor.shape)
            else:
                arrays[tensor.name] = _view(memory, place.offset, tensor.datatype, tensor.shape)
        return arrays


def sizes_of(response: Any) -> dict[str, int]:
    """Bytes of each output that has a dtype, strings left out."""
    known = {tensor.name: byte_size(tensor.datatype, tensor.shape) for tensor in response.outputs}
    return {name: size for name, size in known.items() if size is not None}


def _refer(tensor: Any, region: str, place: Place) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = place.size
    tensor.parameters["shared_memory_offset"].int64_param = place.offset


def _view(memory: Memory, offset: int, name: str, shape: Sequence[int]) -> Array:
    return np.ndarray(tuple(shape), dtype(name), memory, offset)
