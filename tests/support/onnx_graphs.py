"""Make small ONNX graphs. Each function writes a graph to ``path`` and returns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper, parser

from sm.build.onnx_graph import Graph

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


def write_graph(path: Path, text: str, opset: int = 17) -> Graph:
    """Write a graph in ONNX's own text syntax: inputs, outputs, weights and nodes."""
    graph = parser.parse_graph(f"g {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return Graph.read(path)


def plus_one(path: Path, batch: str | int = "b") -> Graph:
    text = f"(float[{batch},4] x) => (float[{batch},4] y) <float[1] one = {{1.0}}> {{ y = Add(x, one) }}"
    return write_graph(path, text)


ENDLESS = """(float[b,4] x) => (float[b,4] y) <bool yes = {1}> {
    y = Loop <body = body (int64 i, bool go, float[] v) => (bool on, float[] w) {
        on = Identity(go)
        w = Identity(v)
    }> (, yes, x)
}"""


def endless(path: Path) -> Graph:
    """A loop that does not end."""
    return write_graph(path, ENDLESS)


def matrix_product(path: Path) -> Graph:
    """x [b, 4] times a matrix of 4 by 3."""
    values = ", ".join(str(place / 7 - 0.8) for place in range(12))
    return write_graph(
        path, f"(float[b,4] x) => (float[b,3] y) <float[4,3] w = {{{values}}}> {{ y = MatMul(x, w) }}"
    )


def embedding(path: Path) -> Graph:
    """ids [b, s] to rows [b, s, 3] of a table of 10 rows, like the first layer of BERT."""
    values = ", ".join(f"{value}.0" for value in range(30))
    return write_graph(
        path,
        f"(int64[b,s] ids) => (float[b,s,3] rows) <float[10,3] table = {{{values}}}>"
        " { rows = Gather(table, ids) }",
    )


def batch_sum(path: Path) -> Graph:
    """Declares a free batch dimension but sums over the batch, like a faulty export."""
    return write_graph(
        path,
        "(float[b,4] x) => (float[b,4] y) <int64[1] axes = {0}>"
        " { sum = ReduceSum<keepdims = 1>(x, axes) y = Add(x, sum) }",
    )


def convolution(path: Path) -> Graph:
    """A convolution of one pixel."""
    return write_graph(
        path, "(float[b,1,4,4] x) => (float[b,1,4,4] y) <float[1,1,1,1] w = {2.0}> { y = Conv(x, w) }"
    )


def scaled(path: Path) -> Graph:
    """x [b, 4] times the scalar ``factor`` to y, and the scalar ``sum`` of all."""
    return write_graph(
        path,
        "(float[b,4] x, float factor) => (float[b,4] y, float sum)"
        " { y = Mul(x, factor) sum = ReduceSum<keepdims = 0>(y) }",
    )


BRANCHES = """(float[b,n] x, int64 rate) => (float[] y) <float[1] one = {1.0}, int64 wide = {16000}> {
    is_wide = Equal(rate, wide)
    y = If(is_wide) <
        then_branch = then () => (float[] then) { then = Add(x, one) },
        else_branch = otherwise () => (float[] else) { number = Cast<to = 1>(rate) else = Add(x, number) }
    >
}"""


def branches(path: Path) -> Graph:
    """x [b, n] plus 1 if the scalar ``rate`` is 16000, else plus the rate; the output's shape is not declared."""
    return write_graph(path, BRANCHES)


def strided(path: Path, stride: int) -> Graph:
    """x [b, 1, h, w] plus itself scaled down and up again by ``stride``, as detectors join their scales."""
    sides = f"[{stride}, {stride}]"
    return write_graph(
        path,
        f"""(float[b,1,h,w] x) => (float[b,1,h,w] y) <float[4] factors = {{1.0, 1.0, {stride}.0, {stride}.0}}> {{
            small = AveragePool<kernel_shape = {sides}, strides = {sides}>(x)
            large = Resize<mode = "nearest">(small, , factors)
            y = Add(x, large)
        }}""",
    )


def plus_row(path: Path, size: int) -> Graph:
    """x [b, n] plus a row of ``size`` numbers."""
    ones = ", ".join(["1.0"] * size)
    return write_graph(
        path, f"(float[b,n] x) => (float[b,{size}] y) <float[{size}] row = {{{ones}}}> {{ y = Add(x, row) }}"
    )


def same_text(path: Path) -> Graph:
    """text [b, 1] and other [b, 1] to text, and whether they are equal."""
    return write_graph(
        path,
        "(string[b,1] text, string[b,1] other) => (string[b,1] echo, bool[b,1] equal)"
        " { echo = Identity(text) equal = Equal(text, other) }",
        opset=19,
    )


def wrongly_declared(path: Path) -> Graph:
    """x [1, s, 4] to y [1, s, 1, 4], which the graph declares as [1, s]."""
    return write_graph(
        path, "(float[1,s,4] x) => (float[1,s] y) <int64[1] axes = {2}> { y = Unsqueeze(x, axes) }"
    )
