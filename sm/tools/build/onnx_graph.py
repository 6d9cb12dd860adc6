"""What an ONNX graph says of itself: its inputs and outputs, and which of their sizes are free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from sm.errors import StartError

#: ONNX element types as Triton calls them.
DATATYPES = {
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.BOOL: "TYPE_BOOL",
}
#: Operators whose output has the values of their first input.
SAME_VALUES = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity")


@dataclass(frozen=True)
class Value:
    """An input or output. ``sizes`` has a number where a size is fixed, its name where it is free."""

    name: str
    #: As Triton calls it; TYPE_INVALID where Triton has no such type.
    datatype: str
    sizes: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes with -1 for a free one."""
        return tuple(size if isinstance(size, int) else -1 for size in self.sizes)


@dataclass(frozen=True)
class Graph:
    """``bounds``: for integer inputs that pick rows of a table, how many rows it has."""

    path: Path
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bounds: dict[str, int]
    #: Files with weights, beside the graph's own.
    data: tuple[Path, ...] = ()
    #: Whether it has convolutions, which use each weight all over a picture.
    convolves: bool = False

    @classmethod
    def read(cls, path: Path) -> Graph:
        """:class:`StartError` if the file is no ONNX model."""
        try:
            graph = onnx.load(path, load_external_data=False).graph
        except FileNotFoundError:
            raise StartError(f"{path} is missing.") from None
        except Exception as error:  # protobuf's own classes differ between its implementations
            raise StartError(f"{path} is no ONNX model: {error}.") from error
        weights = {weight.name: tuple(weight.dims) for weight in graph.initializer}
        inputs = tuple(_value(each) for each in graph.input if each.name not in weights)
        if not inputs or not graph.output:
            raise StartError(f"{path} is no ONNX model: it has no inputs or no outputs.")
        outputs = tuple(_value(each) for each in graph.output)
        convolves = any(node.op_type == "Conv" for node in graph.node)
        return cls(path, inputs, outputs, dict(_bounds(graph, weights)), _data(path, graph), convolves)

    @property
    def batched(self) -> bool:
        """Whether the first size of every input and output is free: what Triton calls batching."""
        return all(value.shape[:1] == (-1,) for value in (*self.inputs, *self.outputs))


def _value(value: Any) -> Value:
    kind = value.type.tensor_type
    sizes = tuple(
        size.dim_value if size.HasField("dim_value") else size.dim_param or f"{value.name}.{place}"
        for place, size in enumerate(kind.shape.dim)
    )
    return Value(value.name, DATATYPES.get(kind.elem_type, "TYPE_INVALID"), sizes)


def _bounds(graph: Any, weights: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """Inputs that pick one of so many: a row of a weight (a BERT's words), a place of a one-hot code."""
    origin: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in SAME_VALUES:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        elif node.op_type == "Gather" and node.input[0] in weights:
            yield origin.get(node.input[1], node.input[1]), weights[node.input[0]][0]
        elif node.op_type == "Equal" and weights.get(node.input[1], (1,))[-1:] > (1,):
            # A one-hot code is a comparison with each of its numbers.
            yield origin.get(node.input[0], node.input[0]), weights[node.input[1]][-1]


def _data(path: Path, graph: Any) -> tuple[Path, ...]:
    """The weights' files; a graph over 2 GB has to have one."""
    said = [
        entry.value
        for weight in graph.initializer
        for entry in weight.external_data
        if entry.key == "location"
    ]
    files = tuple(path.parent / name for name in dict.fromkeys(said))
    for file in files:
        if file.parent != path.parent or not file.is_file():
            raise StartError(f"{path} has weights in {file}, which has to lie beside it.")
    return files
