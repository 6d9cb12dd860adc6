"""OpenVINO answers only what it computes as ONNX Runtime does: each row of the table, measured on both engines."""

from __future__ import annotations

import importlib.metadata
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
import pytest
from openvino import opset13 as opset

from sm.errors import CommandError
from tests.support.onnx_graphs import write_graph
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.model_builder import ModelBuilder
from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import (
    FP32,
    GRAPH,
    Candidate,
    Chooser,
    Guarded,
    OnnxRuntime,
    Wanted,
)
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import exactness, golden_data
from trireme_tools.build.exactness import FLOAT32, INT32
from trireme_tools.build.golden_answers import Golden
from trireme_tools.build.openvino_engine import OpenVino
from trireme_tools.progress import Progress

OPENVINO = Candidate("openvino", "fp32")
Feed = Mapping[str, Any]
SMALL = [[1, 3, 2, 5], [4, 2, 7, 1]]
#: Beyond 32 bits, and beyond what float32 has.
LONG = [[5_000_000_000, -5_000_000_000, 2**40 + 1, 3], [2**31, 2**32 + 7, 1, 2**63 - 1]]
FINE = [[16_777_217, 16_777_219, 33_554_433, 1_000_000_007], [5, 7, 100_000_007, 1]]
WEIGHTS = {
    "one": np.array([1], np.int64),
    "axis": np.array(1, np.int64),
    "big": np.array(16_777_219, np.int64),
    "two": np.array([2], np.int64),
    "three": np.array([3, 3, 3, 3], np.int64),
    "fine": np.array([16_777_219, 16_777_220, 16_777_219, 16_777_219], np.int64),
    "flat": np.array([-1], np.int64),
    "places": np.array([[0, 1], [1, 0]], np.int64),
    "pads": np.array([0, 1, 0, 1], np.int64),
    "ends": np.array([2**63 - 1], np.int64),
    "first": np.array([0], np.int64),
    "twice": np.array([1, 2], np.int64),
    "shape": np.array([3, 2, 4], np.int64),
    "halves": np.array([2, 2], np.int64),
    "at": np.array([[0], [1]], np.int64),
    "table": np.array([3_000_000_000, -5_000_000_000, 7, 2**40], np.int64),
    "small_table": np.array([5, -3, 7, 2], np.int64),
    "yes": np.array([[True, False, True, False]]),
    "column": np.array([[1], [1], [1], [1]], np.int64),
    "eight": np.array(8, np.int64),
    "off_on": np.array([0, 1], np.int64),
    "half": np.array(0.5, np.float32),
    "low": np.array(0.1, np.float32),
    "zero": np.array(3, np.uint8),
    "marks": np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32),
}


class Row(NamedTuple):
    """A graph that shows an operator of OpenVINO, and what it is asked."""

    body: str
    inputs: str = "int64[n,4] x"
    outputs: str = "int64[m,k] y"
    opset: int = 18
    #: What both engines answer alike; None: any numbers.
    small: Any = None
    #: What OpenVINO computes otherwise; ``none`` for an operator of floats or truths alone.
    beyond: Any = "by the row's number"


FLOATS_IN, FLOATS_OUT = "float[n,4] x", "float[n,4] y"
PICTURE, TRUTH = "float[n,1,4,4] x", "bool[n,4] y"


def floats(text: str, inputs: str = FLOATS_IN, outputs: str = FLOATS_OUT, opset: int = 20) -> Row:
    return Row(text, inputs, outputs, opset, beyond=None)


def truths(text: str) -> Row:
    return Row(f"a = Less(x, three) b = Less(two, x) {text}", outputs=TRUTH, beyond=None)


#: A graph for each row of the table, by the operator of OpenVINO that it shows.
ROWS: Mapping[str, Row] = {
    **{
        name: Row(body)
        for name, body in {
            "Add": "y = Add(x, three)",
            "Subtract": "y = Sub(x, three)",
            "Multiply": "y = Mul(x, three)",
            "Abs": "y = Abs(x)",
            "Negative": "y = Neg(x)",
            "Sign": "y = Sign(x)",
            "CumSum": "y = CumSum(x, axis)",
            "BitwiseAnd": "y = BitwiseAnd(x, x)",
            "BitwiseOr": "y = BitwiseOr(x, three)",
            "BitwiseXor": "y = BitwiseXor(x, three)",
            "BitwiseNot": "y = BitwiseNot(x)",
            "Broadcast": "y = Expand(x, shape)",
            "Concat": "y = Concat<axis = 1>(x, x)",
            "Gather": "y = Gather<axis = 1>(x, first)",
            "GatherElements": "y = GatherElements<axis = 1>(x, places)",
            "Pad": "y = Pad(x, pads)",
            "ScatterElementsUpdate": "y = ScatterElements<axis = 1>(x, places, places)",
            "ScatterNDUpdate": "y = ScatterND(x, at, x)",
            "Select": "y = Where(yes, x, three)",
            "Slice": "y = Slice(x, first, ends, one)",
            "Split": "y, z = Split<axis = 1, num_outputs = 2>(x)",
            "Squeeze": "u = Unsqueeze(x, first) y = Squeeze(u, first)",
            "Tile": "y = Tile(x, twice)",
            "Transpose": "y = Transpose(x)",
            "Unsqueeze": "y = Unsqueeze(x, first)",
            "VariadicSplit": "y, z = Split<axis = 1>(x, halves)",
            "Identity": "y = Identity(x)",
            "TopK": "y, i = TopK<axis = 1>(x, two)",
            "Convert": "c = Cast<to = 1>(x) y = Cast<to = 7>(c)",
            "Divide": "y = Div(x, three)",
            "FloorMod": "y = Mod(x, three)",
            "Mod": "y = Mod<fmod = 1>(x, three)",
            "Power": "y = Pow(x, two)",
            "Relu": "c = Cast<to = 6>(x) r = Relu(c) y = Cast<to = 7>(r)",
            "MatMul": "y = MatMul(x, column)",
            "ReduceSum": "y = ReduceSum(x, one)",
            "ReduceProd": "y = ReduceProd(x, one)",
            "ReduceMax": "y = ReduceMax(x, one)",
            "ReduceMin": "y = ReduceMin(x, one)",
            "ReduceMean": "y = ReduceMean(x, one)",
            "Minimum": "y = Clip(x, axis, big)",
            "Equal": "b = Equal(x, fine) y = Cast<to = 7>(b)",
            "Greater": "b = Greater(fine, x) y = Cast<to = 7>(b)",
            "Less": "b = Less(x, fine) y = Cast<to = 7>(b)",
            "GreaterEqual": "b = GreaterOrEqual(x, fine) y = Cast<to = 7>(b)",
            "LessEqual": "b = LessOrEqual(fine, x) y = Cast<to = 7>(b)",
            "Result": "y = Identity(x)",
        }.items()
    },
    "Reshape": Row("y = Reshape(x, flat)", outputs="int64[m] y"),
    # Of both a clamp is made.
    "Maximum": Row("m = Min(x, big) y = Max(m, axis)"),
    "GatherND": Row("y = GatherND(x, places)", outputs="int64[m] y", small=SMALL, beyond=LONG),
    "Range": Row(
        "s = Squeeze(x) y = Range(axis, s, axis)", "int64[1] x", "int64[m] y", small=[5], beyond=None
    ),
    "OneHot": Row("y = OneHot(x, eight, off_on)", outputs="int64[n,4,8] y", small=SMALL),
    "NonZero": Row("y = NonZero(x)", small=[[0, 3, 0, 5], [0, 2, 7, 0]], beyond=[[2**32, 0, 2**40, 1]]),
    "ShapeOf": Row("y = Shape(x)", outputs="int64[2] y", beyond=None),
    "NonMaxSuppression": floats(
        "y = NonMaxSuppression(x, marks, two, half, low)", "float[1,4,4] x", "int64[m,3] y"
    ),
    "LogicalAnd": truths("y = And(a, b)"),
    "LogicalOr": truths("y = Or(a, b)"),
    "LogicalXor": truths("y = Xor(a, b)"),
    "LogicalNot": truths("y = Not(a)"),
    "IsNaN": floats("r = Sqrt(x) y = IsNaN(r)", outputs=TRUTH),
    "IsInf": floats("r = Reciprocal(x) y = IsInf(r)", outputs=TRUTH),
    **{
        name: floats(f"y = {onnx}(x)")
        for name, onnx in (
            *(
                (name, name)
                for name in ("Sigmoid", "Softmax", "Tanh", "Erf", "Exp", "Sqrt", "Floor", "Round")
            ),
            ("Ceiling", "Ceil"),
        )
    },
    "ReduceL2": floats("y = ReduceL2(x, one)", outputs="float[n,1] y", opset=18),
    "Clamp": floats("y = Clip<min = 0.0, max = 6.0>(x)", opset=6),
    "MaxPool": floats("y = MaxPool<kernel_shape = [2, 2]>(x)", PICTURE, "float[n,1,3,3] y"),
    "AvgPool": floats("y = AveragePool<kernel_shape = [2, 2]>(x)", PICTURE, "float[n,1,3,3] y"),
    "FakeQuantize": floats("q = QuantizeLinear(x, half, zero) y = DequantizeLinear(q, half, zero)", opset=18),
}


def write(folder: Path, row: Row) -> Path:
    text = f"({row.inputs}) => ({row.outputs}) {{ {row.body} }}"
    return write_graph(folder / GRAPH, text, row.opset, WEIGHTS).path


def x(values: Any, kind: Any = np.int64) -> Feed:
    return {"x": np.array(values, kind)}


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        for left, right in zip(one, other, strict=True)
    )


def answers_as_onnx_runtime(path: Path, feed: Feed) -> bool:
    """True if the served engine answers so, whichever of the two it asks."""
    try:
        served: Any = Guarded(OPENVINO, path, 1, False)
    except ValueError:  # ONNX Runtime has the whole graph
        return True
    expected = OnnxRuntime(path, "fp32", 1)
    return same(served.run(served.outputs, feed), expected.run(served.outputs, feed))


def test_the_table_was_measured_with_the_openvino_that_is_installed() -> None:
    assert importlib.metadata.version("openvino").startswith(f"{exactness.MEASURED}.")


def test_each_row_of_the_table_has_a_graph_that_openvino_reads_so() -> None:
    assert ROWS.keys() == exactness.TABLE.keys()


def operators(model: Any) -> set[str]:
    return {node.get_type_name() for node in model.get_ordered_ops()}


def draw(row: Row, seed: int, largest: float = 8) -> Feed:
    """Draw numbers, some of them equal."""
    name, sizes = re.fullmatch(r"(\w+)\[(.*)\] x", row.inputs).groups()  # type: ignore[union-attr]
    shape = [2 if size == "n" else int(size) for size in sizes.split(",")]
    numbers = np.random.default_rng(seed).uniform(-largest, largest, shape).round(1)
    return {"x": numbers.astype(np.float32 if name == "float" else np.int64)}


def alike(one: list[Any], other: list[Any]) -> bool:
    """Whole numbers are the same, floats to their sixth digit."""
    return all(
        left.dtype == right.dtype
        and left.shape == right.shape
        and np.allclose(left, right, 1e-5 if left.dtype.kind == "f" else 0, 1e-6, equal_nan=True)
        for left, right in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table_is_right_up_to_its_number_and_wrong_beyond(name: str, tmp_path: Path) -> None:
    """If OpenVINO is right beyond it, the row can be widened."""
    row = ROWS[name]
    path = write(tmp_path, row)
    plain, expected = OpenVino(path, 1), OnnxRuntime(path, "fp32", 1)
    assert name in operators(openvino.Core().read_model(str(path)))
    small = x(row.small or SMALL) if "int64" in row.inputs else draw(row, 0)
    assert plain.takes(["y"], small)
    assert alike(plain.run(["y"], small), expected.run(["y"], small))
    beyond = row.beyond
    if isinstance(beyond, str):
        beyond = {INT32: LONG, FLOAT32: FINE}[int(exactness.TABLE[name].exact)]
    if beyond is not None:
        assert not plain.takes(["y"], x(beyond))
        assert not same(plain.run(["y"], x(beyond)), expected.run(["y"], x(beyond)))
        assert answers_as_onnx_runtime(path, x(beyond))


@pytest.mark.parametrize("name", ROWS)
def test_the_answers_of_a_row_are_within_what_the_table_follows(name: str, tmp_path: Path) -> None:
    """Of small numbers of a caller: what lies outside would make the next operator's rule wrong."""
    row = ROWS[name]
    path = write(tmp_path, row)
    model, expected = openvino.Core().read_model(str(path)), OnnxRuntime(path, "fp32", 1)
    reader = exactness._Reader(model)
    known = reader._follow(reader.nodes, {}, 8, 8)
    low, high, may_be_nan, *_ = known[model.output("y").node.get_name(), 0]
    for seed in range(20):
        feed = x(row.small) if row.small else draw(row, seed)
        (answer,) = expected.run(["y"], feed)
        if answer.size:
            assert may_be_nan or not np.isnan(answer.astype(np.float64)).any()
            assert low - 1e-5 <= np.nanmin(answer)
            assert np.nanmax(answer) <= high + 1e-5


NAN, BELOW = float("nan"), float("-inf")
FLOATS = [[NAN, 1, -2, 3], [0.5, BELOW, 0, 2]]
ALIKE = [[1, 3, 3, 2], [5, 5, 5, 5]]


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "feed"),
    [
        # The figures of the report.
        ("k = Constant<value_int = 1000>() y = Mul(x, k)", "int64[n,4] x", "int64[n,4] y", x([[1_700_000_000] * 4])),
        ("y = ReduceSum(x, one)", "int32[n,2] x", "int32[n,1] y", x([[16_777_217, 2]], np.int32)),
        ("y = Gather(table, x)", "int64[n,2] x", "int64[n,2] y", x([[0, 3]])),
        ("y, i = TopK<axis = 1>(x, two)", "float[n,4] x", "float[n,2] y, int64[n,2] i", x(ALIKE, np.float32)),
        ("y, i = TopK<axis = 1>(x, two)", "int64[n,4] x", "int64[n,2] y, int64[n,2] i", x(ALIKE)),
        ("y, i = TopK<axis = 1, sorted = 0>(x, two)", "float[n,4] x", "float[n,2] y, int64[n,2] i",
         x(ALIKE, np.float32)),
        *(
            (f"y = {name}<axis = 1, select_last_index = {last}>(x)", "float[n,4] x", "int64[n,1] y", x(values, np.float32))
            for name in ("ArgMax", "ArgMin")
            for last in (0, 1)
            for values in (ALIKE, FLOATS)
        ),
        # NaN of a caller, and NaN that the graph makes.
        *(
            (f"y = {text}", "float[n,4] x", "float[n,k] y", x(FLOATS, np.float32))
            for text in ("Relu(x)", "Softmax(x)", "LogSoftmax(x)", "Exp(x)", "Max(x, x)", "ReduceMax(x, one)",
                         "HardSigmoid(x)", "Celu(x)", "Sigmoid(x)", "Sqrt(x)")
        ),
        ("r = Sqrt(x) y = Relu(r)", "float[n,4] x", "float[n,4] y", x([[-1, 4, 9, 0]], np.float32)),
        ("r = Sqrt(x) u = Unsqueeze(r, first) v = Unsqueeze(u, first) y = MaxPool<kernel_shape = [2, 2]>(v)",
         "float[n,4] x", "float[a,b,c,d] y", x([[-1, 4, 9, 0], [1, 2, -3, 4]], np.float32)),
        ("z = Sub(x, x) q = Div(z, z) y = Greater(q, x)", "float[n,4] x", "bool[n,4] y", x([[-1, 4, 9, 0]], np.float32)),
        ("y = Cast<to = 7>(x)", "float[n,4] x", "int64[n,4] y", x([[NAN, 3e9, -3e9, 2.9]], np.float32)),
        ("y = Cast<to = 2>(x)", "float[n,4] x", "uint8[n,4] y", x([[300, -1, 2.9, 70_000]], np.float32)),
        # Bytes: they saturate, and quotients are rounded.
        *(
            (f"y = {name}(x, x)", f"{kind}[n,4] x", f"{kind}[n,4] y", x([[100, 3, 7, 127]], kind))
            for name in ("Add", "Mul")
            for kind in ("uint8", "int8")
        ),
        ("k = Constant<value = uint8[1] {2}>() y = Div(x, k)", "uint8[n,4] x", "uint8[n,4] y", x([[7, 3, 1, 255]], np.uint8)),
        ("k = Constant<value = uint8[1] {9}>() y = Sub(x, k)", "uint8[n,4] x", "uint8[n,4] y", x([[7, 3, 1, 255]], np.uint8)),
        ("s = Constant<value = float[1] {1.0}>() z = Constant<value = int8[1] {3}>() y = QuantizeLinear(x, s, z)",
         "float[n,4] x", "int8[n,4] y", x([[0.5, 1.5, 2.5, -1]], np.float32)),
        # Unsigned numbers of 32 bits, and float64.
        ("y = Max(x, x)", "uint32[n,4] x", "uint32[n,4] y", x([[3_000_000_000, 2, 1, 0]], np.uint32)),
        ("y = Add(x, x)", "double[n,4] x", "double[n,4] y", x([[1 + 1e-12, 1e300, 0, 1]], np.float64)),
        # Numbers of the graph itself: of a constant, of a size.
        ("y = Where(yes, x, table)", "int64[n,4] x", "int64[n,4] y", x([[1, 2, 3, 4]])),
        ("y = ScatterND(x, at, t) ", "int64[4] x", "int64[4] y", x([1, 2, 3, 4])),
        ("s = Shape(x) k = Constant<value_int = 2000000000>() y = Mul(s, k)", "int64[n,4] x", "int64[2] y", x(SMALL)),
        # In a branch.
        ("""c = Constant<value = bool {1}>()
            y = If<then_branch = a () => (int64[n,4] p) { p = Add(x, x) },
                   else_branch = b () => (int64[n,4] q) { q = Sub(x, x) }>(c)""",
         "int64[n,4] x", "int64[n,4] y", x([[2_000_000_000] * 4])),
    ],
)  # fmt: skip
def test_an_answer_is_onnx_runtimes_bit_by_bit_where_openvino_computes_otherwise(
    body: str, inputs: str, outputs: str, feed: Feed, tmp_path: Path
) -> None:
    body = body.replace("at, t)", "at4, t4)")
    weights = {**WEIGHTS, "at4": np.array([[0], [3]], np.int64), "t4": np.array([2**40, 3], np.int64)}
    path = write_graph(tmp_path / GRAPH, f"({inputs}) => ({outputs}) {{ {body} }}", 18, weights).path
    expected = OnnxRuntime(path, "fp32", 1)
    engine, _ = engines.open_engine(engines.Choice(*OPENVINO), path, 1)
    actual, wanted = engine.run(expected.outputs, feed), expected.run(expected.outputs, feed)
    for one, other in zip(actual, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6 if one.dtype.kind == "f" else 0)


UNARY = (
    *("Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Erf", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu"),
    *("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish"),
    *("ThresholdedRelu", "Sin", "Cos", "Atan", "Reciprocal", "Identity", "Softmax", "LogSoftmax", "Hardmax"),
    *("Gelu", "Shrink", "LpNormalization", "Trilu"),
)
REDUCTIONS = ("Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
POOLS = (
    "MaxPool<kernel_shape = [2, 2]>",
    "AveragePool<kernel_shape = [2, 2]>",
    "GlobalMaxPool",
    "LRN<size = 3>",
)
#: Graphs of floats, with their output.
OF_FLOATS = (
    *((f"y = {name}(x)", FLOATS_OUT) for name in UNARY),
    *((f"y = Reduce{name}(x, one)", "float[n,1] y") for name in REDUCTIONS),
    *(
        (f"f = Cast<to = 1>(three) y = {name}({order})", FLOATS_OUT)
        for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean")
        for order in ("x, f", "f, x")
    ),
    *(
        (f"f = Cast<to = 1>(three) y = {name}({order})", TRUTH)
        for name in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
        for order in ("x, f", "f, x")
    ),
    *(
        (f"u = Unsqueeze(x, first) v = Unsqueeze(u, first) y = {name}(v)", "float[a,b,c,d] y")
        for name in POOLS
    ),
    ("y = Where(yes, x, x)", FLOATS_OUT),
    ("f = Cast<to = 1>(column) y = MatMul(x, f)", "float[n,1] y"),
    ("y = CumSum(x, axis)", FLOATS_OUT),
    ("y = Clip(x, low, half)", FLOATS_OUT),
    ("y = Cast<to = 7>(x)", "int64[n,4] y"),
    ("y = Cast<to = 9>(x)", TRUTH),
    ("c = Cast<to = 10>(x) y = Cast<to = 1>(c)", FLOATS_OUT),
    ("c = Cast<to = 16>(x) y = Cast<to = 1>(c)", FLOATS_OUT),
    ("q = QuantizeLinear(x, half, zero) y = DequantizeLinear(q, half, zero)", FLOATS_OUT),
    ("y, i = TopK<axis = 1>(x, two)", "float[n,2] y"),
    ("y = NonZero(x)", "int64[2,m] y"),
)


@pytest.mark.parametrize(("body", "outputs"), OF_FLOATS)
def test_nan_that_a_graph_makes_comes_out_as_onnx_runtime_gives_it(
    body: str, outputs: str, tmp_path: Path
) -> None:
    """Of an operator that keeps NaN OpenVINO's answer is taken, of one of DROPS_NAN ONNX Runtime's."""
    inputs = FLOATS_IN.replace("x", "roots")
    path = write(
        tmp_path, Row(f"x = Sqrt(roots) {body}", inputs, outputs, 20 if "Reduce" not in body else 18)
    )
    served, _ = engines.open_engine(engines.Choice(*OPENVINO), path, 1)
    expected, draw = OnnxRuntime(path, "fp32", 1), np.random.default_rng(0)
    for rows in (2, 3, 67):  # with and without a rest behind a processor's vectors
        feed = {"roots": draw.uniform(-1, 9, (rows, 4)).astype(np.float32)}
        assert alike(served.run(["y"], feed), expected.run(["y"], feed))


def test_a_bf16_output_is_refused_and_bf16_inside_is_not(tmp_path: Path) -> None:
    """OpenVINO labels it float16, and ONNX Runtime cannot give one to Python: it cannot be built."""
    row = Row("y = Cast<to = 16>(x) z = Cast<to = 1>(y)", FLOATS_IN, "bfloat16[n,4] y, float[n,4] z")
    path, numbers = write(tmp_path, row), x([[1.1, 2, 3, -4]], np.float32)
    plain = OpenVino(path, 1)
    (labelled,) = plain.run(["y"], numbers)
    assert (labelled.dtype, labelled[0, 0] == pytest.approx(1.1, abs=0.1)) == (np.float16, False)
    assert plain.trust.wrong.keys() == {"y"}
    assert (plain.takes(["y"], numbers), plain.takes(["z"], numbers)) == (False, True)
    # OpenVINO cuts the digits off, and ONNX Runtime rounds them.
    (expected,) = OnnxRuntime(path, "fp32", 1).run(["z"], numbers)
    np.testing.assert_allclose(plain.run(["z"], numbers)[0], expected, rtol=2**-7)
    with pytest.raises(ValueError, match="y"):
        OpenVino(write(tmp_path / "alone", Row("y = Cast<to = 16>(x)", FLOATS_IN, "bfloat16[n,4] y")), 1)
    request = BuildRequest("tiny", "cpu", tmp_path / "out", path)
    with pytest.raises(CommandError):
        ModelBuilder(tmp_path / "cache", tmp_path / "none", Progress(io.StringIO())).build(request)


#: A text model as RoBERTa is: positions are counted from the tokens, the mask hides padding, the mean is the answer.
TEXT = """(int64[b,s] input_ids, int64[b,s] attention_mask) => (float[b,4] y) {
    is_padding = Equal(input_ids, one) is_token = Not(is_padding) counted = Cast<to = 7>(is_token)
    summed = CumSum(counted, axis) spots = Mul(summed, counted) positions = Add(spots, one)
    words = Gather(word_table, input_ids) where = Gather(place_table, positions) added = Add(words, where)
    mean = ReduceMean(added, flat) less = Sub(added, mean) square = Mul(less, less) variance = ReduceMean(square, flat)
    safe = Add(variance, small) deviation = Sqrt(safe) normal = Div(less, deviation)
    mask = Cast<to = 1>(attention_mask) wide = Unsqueeze(mask, flat) off = Sub(single, wide) far = Mul(off, lowest)
    keys = Transpose<perm = [0, 2, 1]>(normal) scores = MatMul(normal, keys)
    row = Transpose<perm = [0, 2, 1]>(far) masked = Add(scores, row) shares = Softmax<axis = -1>(masked)
    mixed = MatMul(shares, normal) gone = Relu(mixed) y = ReduceMean<keepdims = 0>(gone, one)
}"""


def test_a_text_model_stays_on_openvino_for_tokens_and_lengths_that_its_tables_have(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weights = {
        **WEIGHTS,
        "word_table": draw.standard_normal((50_265, 4)).astype(np.float32),
        "place_table": draw.standard_normal((514, 4)).astype(np.float32),
        "small": np.array([1e-5], np.float32),
        "single": np.array([1], np.float32),
        "lowest": np.array([np.finfo(np.float32).min], np.float32),
    }
    path = write_graph(tmp_path / GRAPH, TEXT, 18, weights).path
    plain, expected = OpenVino(path, 1), OnnxRuntime(path, "fp32", 1)
    assert not plain.trust.wrong

    def feed(length: int, token: int) -> Feed:
        ids = np.full((2, length), token, np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    for each in (feed(12, 50_264), feed(512, 4711)):
        assert plain.takes(["y"], each)
        np.testing.assert_allclose(
            plain.run(["y"], each)[0], expected.run(["y"], each)[0], rtol=1e-3, atol=1e-5
        )
    # What ONNX Runtime refuses: a token and a place beyond their tables.
    assert not plain.takes(["y"], feed(12, 50_265))
    assert not plain.takes(["y"], feed(600, 4711))


def test_an_output_that_is_right_stays_on_openvino_beside_one_that_is_not(tmp_path: Path) -> None:
    body = "y = Relu(x) i = ArgMax<axis = 1>(x) z = Gather(table, i)"
    path = write(tmp_path, Row(body, FLOATS_IN, "float[n,4] y, int64[n,1] z"))
    golden_data.from_random_inputs(Graph.read(path), [{"n": 1}], tmp_path)
    plain, numbers = OpenVino(path, 1), x(ALIKE, np.float32)
    assert plain.trust.wrong.keys() == {"z"}
    assert (plain.takes(["y"], numbers), plain.takes(["y", "z"], numbers)) == (True, False)
    assert answers_as_onnx_runtime(path, numbers)
    choice = Chooser(tmp_path, Wanted(engine="openvino", precision="fp32"), None, set()).choose()
    assert choice.candidate == OPENVINO


def test_a_graph_whose_outputs_openvino_all_computes_otherwise_is_onnx_runtimes(tmp_path: Path) -> None:
    path = write(tmp_path, Row("y = Gather(table, x)"))
    golden_data.from_random_inputs(Graph.read(path), [{"n": 1}], tmp_path)
    choice = Chooser(tmp_path, Wanted(engine="openvino", precision="fp32"), None, set()).choose()
    assert (choice.candidate, len(choice.faults), choice.lacks) == (FP32, 1, False)


def test_golden_inputs_have_large_integers_equal_floats_and_nan(tmp_path: Path) -> None:
    graph = write_graph(
        tmp_path / GRAPH,
        "(float[n,4] x, int64[n,4] k) => (float[n,4] y, int64[n,4] z) { y = Relu(x) z = Add(k, k) }",
    )
    golden_data.from_random_inputs(graph, [{"n": 2}], tmp_path)
    feeds = Golden.read(tmp_path / engines.GOLDEN).feeds
    assert any(np.array_equal(feed["x"], feed["x"].round()) for feed in feeds)
    assert max(int(feed["k"].max()) for feed in feeds) > 2**32
    assert any(np.isnan(feed["x"]).any() for feed in feeds)


def test_an_int8_graph_is_not_asked_with_nan(tmp_path: Path) -> None:
    """It has no NaN, so its answer would be a number."""
    weights = np.eye(4, dtype=np.float32)
    body = "(float[n,4] x) => (float[n,4] y) { y = MatMul(x, weights) }"
    path = write_graph(tmp_path / GRAPH, body, 18, {"weights": weights}).path
    value = opset.parameter([-1, 4], np.float32, name="x")
    least, most = opset.constant(np.float32(-64)), opset.constant(np.float32(63.5))
    halves = opset.fake_quantize(value, least, most, least, most, 256)
    product = opset.matmul(halves, opset.constant(weights), False, False)
    product.output(0).set_names({"y"})
    model = openvino.Model([opset.result(product, name="y")], [value], "quantized")
    model.inputs[0].set_names({"x"})
    openvino.save_model(model, str(tmp_path / engines.INT8_GRAPH), compress_to_fp16=False)
    numbers = x(FLOATS, np.float32)
    served, _ = engines.open_engine(engines.Choice("openvino", "int8"), path, 1)
    assert same(served.run(["y"], numbers), OnnxRuntime(path, "fp32", 1).run(["y"], numbers))
    few = x([[0.6, 1, -1, 0.5]], np.float32)
    assert served.run(["y"], few)[0].tolist() == [[0.5, 1, -1, 0.5]]  # int8 is what answers others
