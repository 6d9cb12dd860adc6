"""Make small ONNX graphs. Each function writes a graph to ``path`` and returns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from sm.commands.build.onnx_graph import Graph

OPSET = [helper.make_opsetid("", 17)]


def save_graph(
    path: Path,
    nodes: list[onnx.NodeProto],
    given: dict[str, Any],
    taken: dict[str, Any],
    weights: tuple[Any, ...] = (),
    opset: int = 17,
) -> Graph:
    """Write a graph. ``given`` (inputs) and ``taken`` (outputs) map names to element type and shape."""
    inputs = [helper.make_tensor_value_info(name, *value) for name, value in given.items()]
    outputs = [helper.make_tensor_value_info(name, *value) for name, value in taken.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return Graph.read(path)


def plus_one(path: Path, batch: str | int = "b") -> Graph:
    """x [b, 4] to y [b, 4]."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    sizes = (TensorProto.FLOAT, [batch, 4])
    return save_graph(
        path, [helper.make_node("Add", ["x", "one"], ["y"])], {"x": sizes}, {"y": sizes}, (one,)
    )


def endless(path: Path) -> Graph:
    """x [b, 4] to y [b, 4], by way of a loop that does not end."""
    flag: tuple[int, list[int]] = (TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", *flag),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", *flag),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
        ],
    )
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    sizes = (TensorProto.FLOAT, ["b", 4])
    node = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    return save_graph(path, [node], {"x": sizes}, {"y": sizes}, (yes,))


def matrix_product(path: Path) -> Graph:
    """x [b, 4] times a matrix of 4 by 3."""
    values = [place / 7 - 0.8 for place in range(12)]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], values)
    given, taken = {"x": (TensorProto.FLOAT, ["b", 4])}, {"y": (TensorProto.FLOAT, ["b", 3])}
    return save_graph(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], given, taken, (weight,))


def embedding(path: Path) -> Graph:
    """ids [b, s] to rows [b, s, 3] of a table of 10 rows, like the first layer of BERT."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [10, 3], [float(value) for value in range(30)])
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    given = {"ids": (TensorProto.INT64, ["b", "s"])}
    return save_graph(path, [node], given, {"rows": (TensorProto.FLOAT, ["b", "s", 3])}, (table,))


def one_hot(path: Path) -> Graph:
    """ids [b, 4] to one-hot vectors [b, 4, 6], by comparison with 0 to 5 as exporters do it."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [-1, 4, 1])
    numbers = helper.make_tensor("numbers", TensorProto.INT32, [1, 1, 6], list(range(6)))
    nodes = [
        helper.make_node("Reshape", ["ids", "shape"], ["each"]),
        helper.make_node("Equal", ["each", "numbers"], ["same"]),
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
    ]
    given, taken = {"ids": (TensorProto.INT32, ["b", 4])}, {"y": (TensorProto.FLOAT, ["b", 4, 6])}
    return save_graph(path, nodes, given, taken, (shape, numbers))


def batch_sum(path: Path) -> Graph:
    """Declares a free batch dimension but sums over the batch, like a faulty export."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    sizes = (TensorProto.FLOAT, ["b", 4])
    return save_graph(path, nodes, {"x": sizes}, {"y": sizes}, (axes,))


def convolution(path: Path) -> Graph:
    """x [b, 1, 4, 4] to y [b, 1, 4, 4], a convolution of one pixel."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 1, 1], [2.0])
    sizes = (TensorProto.FLOAT, ["b", 1, 4, 4])
    return save_graph(
        path, [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": sizes}, {"y": sizes}, (weight,)
    )


def scaled(path: Path) -> Graph:
    """x [b, 4] times the scalar ``factor`` to y, and the scalar ``sum`` of all."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]
    sizes = (TensorProto.FLOAT, ["b", 4])
    given = {"x": sizes, "factor": (TensorProto.FLOAT, [])}
    return save_graph(path, nodes, given, {"y": sizes, "sum": (TensorProto.FLOAT, [])})


def branches(path: Path) -> Graph:
    """x [b, n] plus 1 if the scalar ``rate`` is 16000, else plus the rate; the output's shape is not declared."""

    def branch(name: str, node: onnx.NodeProto, *before: onnx.NodeProto) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([*before, node], name, [], [output])

    cast = helper.make_node("Cast", ["rate"], ["number"], to=TensorProto.FLOAT)
    then = branch("then", helper.make_node("Add", ["x", "one"], ["then"]))
    otherwise = branch("else", helper.make_node("Add", ["x", "number"], ["else"]), cast)
    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    weights = (
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("wide", TensorProto.INT64, [], [16000]),
    )
    given = {"x": (TensorProto.FLOAT, ["b", "n"]), "rate": (TensorProto.INT64, [])}
    return save_graph(path, nodes, given, {"y": (TensorProto.FLOAT, None)}, weights)


def strided(path: Path, stride: int) -> Graph:
    """x [b, 1, h, w] plus itself scaled down and up again by ``stride``, as detectors join their scales."""
    factors = helper.make_tensor("factors", TensorProto.FLOAT, [4], [1.0, 1.0, float(stride), float(stride)])
    nodes = [
        helper.make_node("AveragePool", ["x"], ["small"], kernel_shape=[stride] * 2, strides=[stride] * 2),
        helper.make_node("Resize", ["small", "", "factors"], ["large"], mode="nearest"),
        helper.make_node("Add", ["x", "large"], ["y"]),
    ]
    given = {"x": (TensorProto.FLOAT, ["b", 1, "h", "w"])}
    return save_graph(path, nodes, given, {"y": (TensorProto.FLOAT, ["b", 1, "h", "w"])}, (factors,))


def plus_row(path: Path, size: int) -> Graph:
    """x [b, n] plus a row of ``size`` numbers."""
    row = helper.make_tensor("row", TensorProto.FLOAT, [size], [1.0] * size)
    sizes = (TensorProto.FLOAT, ["b", "n"])
    node = helper.make_node("Add", ["x", "row"], ["y"])
    return save_graph(path, [node], {"x": sizes}, {"y": (TensorProto.FLOAT, ["b", size])}, (row,))


def same_text(path: Path) -> Graph:
    """text [b, 1] and other [b, 1] to text, and whether they are equal."""
    text, equal = (TensorProto.STRING, ["b", 1]), (TensorProto.BOOL, ["b", 1])
    nodes = [
        helper.make_node("Identity", ["text"], ["echo"]),
        helper.make_node("Equal", ["text", "other"], ["equal"]),
    ]
    return save_graph(path, nodes, {"text": text, "other": text}, {"echo": text, "equal": equal}, opset=19)


def wrongly_declared(path: Path) -> Graph:
    """x [1, s, 4] to y [1, s, 1, 4], which the graph declares as [1, s]."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    given, taken = {"x": (TensorProto.FLOAT, [1, "s", 4])}, {"y": (TensorProto.FLOAT, [1, "s"])}
    return save_graph(path, [helper.make_node("Unsqueeze", ["x", "axes"], ["y"])], given, taken, (axes,))
