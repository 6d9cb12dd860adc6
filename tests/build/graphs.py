"""Small ONNX graphs for these tests."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from sm.tools.build.onnx_graph import Graph

OPSET = [helper.make_opsetid("", 17)]


def saved(path: Path, nodes: list[onnx.NodeProto], given: dict, taken: dict, weights: tuple = ()) -> Graph:  # type: ignore[type-arg]
    """``given`` and ``taken``: element type and sizes by name."""
    inputs = [helper.make_tensor_value_info(name, *value) for name, value in given.items()]
    outputs = [helper.make_tensor_value_info(name, *value) for name, value in taken.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=OPSET, ir_version=8), path)
    return Graph.read(path)


def plus_one(path: Path, batch: str | int = "b") -> Graph:
    """x [b, 4] to y [b, 4]."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    sizes = (TensorProto.FLOAT, [batch, 4])
    return saved(path, [helper.make_node("Add", ["x", "one"], ["y"])], {"x": sizes}, {"y": sizes}, (one,))


def product(path: Path) -> Graph:
    """x [b, 4] times a matrix of 4 by 3."""
    values = [place / 7 - 0.8 for place in range(12)]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], values)
    given, taken = {"x": (TensorProto.FLOAT, ["b", 4])}, {"y": (TensorProto.FLOAT, ["b", 3])}
    return saved(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], given, taken, (weight,))


def words(path: Path) -> Graph:
    """ids [b, s] to rows [b, s, 3] of a table of 10 rows, as a BERT's first layer does."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [10, 3], [float(value) for value in range(30)])
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    given = {"ids": (TensorProto.INT64, ["b", "s"])}
    return saved(path, [node], given, {"rows": (TensorProto.FLOAT, ["b", "s", 3])}, (table,))


def code(path: Path) -> Graph:
    """ids [b, 4] to their one-hot code of 6 places, as exporters spell it out: a comparison with 0 to 5."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [-1, 4, 1])
    numbers = helper.make_tensor("numbers", TensorProto.INT32, [1, 1, 6], list(range(6)))
    nodes = [
        helper.make_node("Reshape", ["ids", "shape"], ["each"]),
        helper.make_node("Equal", ["each", "numbers"], ["same"]),
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
    ]
    given, taken = {"ids": (TensorProto.INT32, ["b", 4])}, {"y": (TensorProto.FLOAT, ["b", 4, 6])}
    return saved(path, nodes, given, taken, (shape, numbers))


def one_size(path: Path) -> Graph:
    """Says that any batch will do, but sums over the batch: an export that went wrong."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    sizes = (TensorProto.FLOAT, ["b", 4])
    return saved(path, nodes, {"x": sizes}, {"y": sizes}, (axes,))


def convolution(path: Path) -> Graph:
    """x [b, 1, 4, 4] to y [b, 1, 4, 4], a convolution of one pixel."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 1, 1], [2.0])
    sizes = (TensorProto.FLOAT, ["b", 1, 4, 4])
    return saved(path, [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": sizes}, {"y": sizes}, (weight,))
