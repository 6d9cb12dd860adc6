"""Describe an ONNX graph: its inputs and outputs, and which of their sizes are free."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from sm.errors import CommandError
from sm.repository.manifest import Change
from sm.triton.tensors import DTYPES

#: Triton's names of ONNX element types.
DATATYPES = {
    onnx.TensorProto.STRING: "TYPE_STRING",
    **{onnx.helper.np_dtype_to_tensor_dtype(dtype): f"TYPE_{name}" for name, dtype in DTYPES.items()},
}
#: Texts that exporters write for an unknown size; two of these need not be equal.
UNNAMED = ("", "?", "None", "-1")
#: The name of an output's first size that is not a batch, as a run has shown.
ROWS = "rows"
#: Operators whose output has the values of their first input.
SAME_VALUES = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity")


@dataclass(frozen=True)
class Value:
    """An input or output. ``sizes`` has a number for a fixed size and a name for a free one."""

    name: str
    #: Triton's type; TYPE_INVALID if it has none.
    datatype: str
    sizes: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, with -1 for a free one."""
        return tuple(size if isinstance(size, int) else -1 for size in self.sizes)


@dataclass(frozen=True)
class Graph:
    """A graph. ``bounds``: for integer inputs that index a table, the number of its rows."""

    path: Path
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bounds: dict[str, int]
    #: Files with weights beside the graph.
    data: tuple[Path, ...] = ()
    #: True if it has convolutions, which use each weight at every position of a picture.
    convolves: bool = False
    #: For integer inputs that are compared with one number (a sampling rate), that number.
    compared: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Graph:
        """Read a graph. Raises :class:`CommandError` if the file is not an ONNX model."""
        try:
            model = onnx.load(path, load_external_data=False)
            graph = model.graph
        except FileNotFoundError:
            raise CommandError(f"{path} is missing.") from None
        except Exception as error:  # protobuf's own classes differ between its implementations
            raise CommandError(f"{path} is not an ONNX model: {error}.") from error
        weights = {weight.name: tuple(weight.dims) for weight in graph.initializer}
        inputs = tuple(_value(value) for value in graph.input if value.name not in weights)
        if not inputs or not graph.output:
            raise CommandError(f"{path} is not an ONNX model: it has no inputs or no outputs.")
        outputs = tuple(_value(value) for value in graph.output)
        convolves = any(node.op_type == "Conv" for node in graph.node)
        data = _data(path, model)
        bounds, compared = _numbers_of_inputs(graph, weights, path.parent)
        return cls(path, inputs, outputs, bounds, data, convolves, compared)

    @property
    def batched(self) -> bool:
        """True if the first size of every input and output is free, as Triton's batching needs.

        If no input has another size, that one is more likely a length, such as a recording's samples. If an
        output has that size in another place too, as a table of similarities has, it is a number of rows, as
        :data:`ROWS` is.
        """
        values = (*self.inputs, *self.outputs)
        is_free = all(value.shape[:1] == (-1,) for value in values)
        first = {value.sizes[0] for value in values if value.sizes}
        is_elsewhere = any(first & {*output.sizes[1:]} for output in self.outputs)
        is_batch = is_free and not is_elsewhere and all(value.sizes[0] != ROWS for value in self.outputs)
        return is_batch and any(len(value.shape) > 1 for value in self.inputs)


@dataclass(frozen=True)
class Graphs:
    """A graph before, between and after its changes, which the tools make."""

    source: Graph
    #: Has the input of ``served`` and the outputs of ``source``, so that both can be compared with it.
    prepared: Graph
    served: Graph
    #: The changes from ``source`` to ``served``.
    applied: tuple[Change, ...] = ()


def _value(value: Any) -> Value:
    kind = value.type.tensor_type
    sizes = tuple(_size(size) or f"{value.name}.{place}" for place, size in enumerate(kind.shape.dim))
    return Value(value.name, DATATYPES.get(kind.elem_type, "TYPE_INVALID"), sizes)


def _size(size: Any) -> int | str | None:
    """Return a fixed size, or the name of a free one; None if it has no name."""
    if size.HasField("dim_value") and size.dim_value > 0:
        return int(size.dim_value)
    return None if size.dim_param in UNNAMED else str(size.dim_param)


def _numbers_of_inputs(
    graph: Any, weights: dict[str, tuple[int, ...]], folder: Path
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what integer inputs may be: the bounds of indexes, and numbers that they are compared with.

    Indexes are of the rows of a weight (a BERT's words), or of a one-hot code; a branch for each sampling
    rate compares with one number. The graph lies in ``folder``, where its numbers may have a file of their
    own.
    """
    numbers = {weight.name: weight for weight in graph.initializer}
    numbers |= {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].HasField("t")
    }
    bounds: dict[str, int] = {}
    compared: dict[str, int] = {}
    origin: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in SAME_VALUES:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        elif node.op_type == "Gather" and node.input[0] in weights:
            bounds[origin.get(node.input[1], node.input[1])] = weights[node.input[0]][0]
        elif node.op_type == "Equal":
            source = origin.get(node.input[0], node.input[0])
            if weights.get(node.input[1], (1,))[-1:] > (1,):
                # A one-hot code compares its input with each number.
                bounds[source] = weights[node.input[1]][-1]
            if node.input[1] in numbers:
                take_in(numbers[node.input[1]], folder)
                number = onnx.numpy_helper.to_array(numbers[node.input[1]])
                if number.size == 1 and number.dtype.kind in "iu":
                    compared[source] = int(number.reshape(-1)[0])
    return bounds, compared


def _data(path: Path, model: onnx.ModelProto) -> tuple[Path, ...]:
    """Return the files with weights; a graph over 2 GB must have some."""
    files = tuple(path.parent / name for name in data_names(model))
    for file in files:
        if file.parent != path.parent or not file.is_file():
            raise CommandError(f"{path} has weights in {file}, which has to lie beside it.")
    return files


def take_in(tensor: onnx.TensorProto, folder: Path) -> None:
    """Read a tensor's numbers from its file beside the graph, if it has one, into the tensor.

    ONNX's own function refuses files that are links or have hard links, as a cache's have.

    Raises:
        CommandError: The file does not have them.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        with (folder / entries["location"]).open("rb") as file:
            size, start = os.fstat(file.fileno()).st_size, int(entries.get("offset", 0))
            end = start + int(entries.get("length", size - start))
            if not 0 <= start <= end <= size:
                raise ValueError(f"bytes {start} to {end} of {size}")
            file.seek(start)
            tensor.raw_data = file.read(end - start)
    except (KeyError, ValueError, OSError) as error:
        raise CommandError(f"the numbers of {tensor.name or 'a constant'} cannot be read: {error}.") from None
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")


def data_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of the files that have tensors of the model."""
    tensors = (*model.graph.initializer, *inner_tensors(model))
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    return list(dict.fromkeys(entry.value for entry in entries if entry.key == "location"))


def inner_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors in attributes of nodes: those of Constant, and of the graphs of If, Loop and Scan."""
    for graph in (model.graph, *model.functions):
        yield from _attribute_tensors(graph)


def _attribute_tensors(graph: Any) -> Iterator[onnx.TensorProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in inner_graphs(node):
            yield from inner.initializer
            yield from _attribute_tensors(inner)


def inner_graphs(node: Any) -> Iterator[Any]:
    """Yield the branches and loops inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
