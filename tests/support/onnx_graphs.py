"""Make small ONNX graphs. Each function writes a graph to ``path`` and returns it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from trireme_extensions.convert.onnx_graph import Graph

#: An ONNX file as short as can be: a graph with nothing in it.
EMPTY_GRAPH = bytes([7 << 3 | 2, 0])
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
    return _save(path, helper.make_graph(nodes, "g", inputs, outputs, list(weights)), opset)


def write_graph(
    path: Path, text: str, opset: int = 17, weights: Mapping[str, NDArray[Any]] | None = None
) -> Graph:
    """Write a graph in ONNX's own text syntax, with those of the weights that it uses."""
    graph = parser.parse_graph(f"g {text}")
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in (weights or {}).items() if name in used
    )
    return _save(path, graph, opset)


def _save(path: Path, graph: onnx.GraphProto, opset: int) -> Graph:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return Graph.read(path)


def plus_one(path: Path, batch: str | int = "b") -> Graph:
    text = f"(float[{batch},4] x) => (float[{batch},4] y) <float[1] one = {{1.0}}> {{ y = Add(x, one) }}"
    return write_graph(path, text)


#: A loop that takes a processor minutes, longer than any test waits.
long_loop = partial(
    write_graph,
    text="""(float[b,4] x) => (float[b,4] y) <int64 rounds = {400000000}, bool yes = {1}> {
        y = Loop <body = body (int64 i, bool go, float[] v) => (bool on, float[] w) {
            on = Identity(go)
            w = Identity(v)
        }> (rounds, yes, x)
    }""",
)
MATRIX = ", ".join(str(place / 7 - 0.8) for place in range(12))
#: x [b, 4] times a matrix of 4 by 3.
matrix_product = partial(
    write_graph, text=f"(float[b,4] x) => (float[b,3] y) <float[4,3] w = {{{MATRIX}}}> {{ y = MatMul(x, w) }}"
)
TABLE = ", ".join(f"{value}.0" for value in range(30))
#: ids [b, s] to rows [b, s, 3] of a table of 10 rows, like the first layer of BERT.
embedding = partial(
    write_graph,
    text=f"(int64[b,s] ids) => (float[b,s,3] rows) <float[10,3] t = {{{TABLE}}}> {{ rows = Gather(t, ids) }}",
)
#: Declares a free batch dimension but sums over the batch, like a faulty export.
batch_sum = partial(
    write_graph,
    text="(float[b,4] x) => (float[b,4] y) <int64[1] axes = {0}>"
    " { sum = ReduceSum<keepdims = 1>(x, axes) y = Add(x, sum) }",
)
#: A convolution of one pixel.
convolution = partial(
    write_graph, text="(float[b,1,4,4] x) => (float[b,1,4,4] y) <float[1,1,1,1] w = {2.0}> { y = Conv(x, w) }"
)
#: x [b, 4] times the scalar ``factor`` to y, and the scalar ``sum`` of all.
scaled = partial(
    write_graph,
    text="(float[b,4] x, float factor) => (float[b,4] y, float sum)"
    " { y = Mul(x, factor) sum = ReduceSum<keepdims = 0>(y) }",
)
#: x [b, n] plus 1 if the scalar ``rate`` is 16000, else plus the rate; the output's shape is not declared.
branches = partial(
    write_graph,
    text="""(float[b,n] x, int64 rate) => (float[] y) <float[1] one = {1.0}, int64 wide = {16000}> {
        is_wide = Equal(rate, wide)
        y = If(is_wide) <
            then_branch = then () => (float[] then) { then = Add(x, one) },
            else_branch = otherwise () => (float[] else) { number = Cast<to = 1>(rate) else = Add(x, number) }
        >
    }""",
)


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
