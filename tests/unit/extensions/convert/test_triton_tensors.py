"""A graph's tensors are adapted to Triton, or an error says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sm.errors import CommandError
from tests.support.onnx_graphs import OPSET, branches, plus_one, save_graph, scaled, write_graph
from trireme_extensions.convert.graph_runner import RandomInputs, newest_ir_version, session
from trireme_extensions.convert.onnx_graph import DATATYPES, Graph
from trireme_extensions.convert.targets import place_on_cpu
from trireme_extensions.convert.triton_tensors import adapt

FLOAT = TensorProto.FLOAT


def adapted_graph(graph: Graph) -> Graph:
    return Graph.read(adapt(graph.path, graph.path.with_name("adapted.onnx"), print))


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {value.name: value.shape for value in (*graph.inputs, *graph.outputs)}


KINDS = sorted(set(DATATYPES) - {TensorProto.BFLOAT16})


@pytest.mark.parametrize("shape", [[], [1], ["b", 2, "n"]], ids=str)
def test_inputs_of_every_rank_and_type_are_made(tmp_path: Path, shape: list[int | str]) -> None:
    nodes = [helper.make_node("Identity", [f"x{kind}"], [f"y{kind}"]) for kind in KINDS]
    inputs, outputs = ({f"{name}{kind}": (kind, shape) for kind in KINDS} for name in "xy")
    graph = adapted_graph(save_graph(tmp_path / "model.onnx", nodes, inputs, outputs))
    feed = RandomInputs(graph, seed=0).feed({"n": 3, "b": 2}, batch=2)
    answers = session(graph.path).run([f"y{kind}" for kind in KINDS], feed)
    for kind, answer in zip(KINDS, answers, strict=True):
        assert np.array_equal(answer, feed[f"x{kind}"])


def test_a_scalar_is_served_with_the_shape_1_and_the_result_of_a_branch_with_its_own(tmp_path: Path) -> None:
    graph = adapted_graph(scaled(tmp_path / "scaled.onnx"))
    assert (shapes(graph)["factor"], shapes(graph)["sum"], graph.batched) == ((1,), (1,), False)
    feed = {"x": np.ones((2, 4), np.float32), "factor": np.array([3], np.float32)}
    product, total = session(graph.path).run(["y", "sum"], feed)
    assert (product.tolist(), total.tolist()) == ([[3.0] * 4] * 2, [24.0])
    graph = adapted_graph(branches(tmp_path / "branches.onnx"))
    assert (shapes(graph)["rate"], shapes(graph)["y"]) == ((1,), (-1, -1))
    for rate, expected in ((16_000, 2.0), (8000, 8001.0)):
        feed = {"x": np.ones((1, 3), np.float32), "rate": np.array([rate])}
        assert session(graph.path).run(["y"], feed)[0].tolist() == [[expected] * 3]


#: Weights of a graph, of the branches of an If, and of a constant: all are in files of their own.
WITH_WEIGHTS = [
    "(float[b,4] x) => (float[b,4] y) <float[4] w = {1, 1, 1, 1}> { y = Add(x, w) }",
    """(float[b,4] x) => (float[b,4] y) { yes = Constant <value = bool[1] {1}> () y = If (yes) <
        then_branch = one () => (float[b,4] z) <float[4] w = {1, 1, 1, 1}> { z = Add(x, w) },
        else_branch = two () => (float[b,4] v) <float[4] u = {1, 1, 1, 1}> { v = Add(x, u) }> }""",
    "(float[b,4] x) => (float[b,4] y) { w = Constant <value = float[4] {1, 1, 1, 1}> () y = Add(x, w) }",
]


@pytest.mark.parametrize("text", WITH_WEIGHTS, ids=["weights", "of an If", "of a constant"])
@pytest.mark.parametrize("as_links", [False, True])
def test_weights_beside_a_graph_go_with_it(tmp_path: Path, text: str, as_links: bool) -> None:
    source, served = tmp_path / "source", tmp_path / "served"
    (source / "blobs").mkdir(parents=True)
    served.mkdir()
    model = onnx.load(write_graph(source / "model.onnx", text).path)
    onnx.external_data_helper.convert_model_to_external_data(model, size_threshold=0, convert_attribute=True)
    onnx.save_model(model, source / "model.onnx")
    # A folder of links, as the hub's cache is one.
    for file in [path for path in source.iterdir() if as_links and path.is_file()]:
        file.rename(source / "blobs" / file.name)
        file.symlink_to(source / "blobs" / file.name)
    place_on_cpu(adapted_graph(Graph.read(source / "model.onnx")), served)
    (answer,) = session(served / "model.onnx").run(["y"], {"x": np.ones((1, 4), np.float32)})
    assert answer.tolist() == [[2.0] * 4]


def test_one_number_per_record_is_served_with_the_shape_1(tmp_path: Path) -> None:
    text = """(float[n,3] x, float[n] weight) => (int64[n] label) <int64[1] one = {1}>
        { column = Unsqueeze(weight, one) scaled = Mul(x, column) label = ArgMax<axis = 1, keepdims = 0>(scaled) }"""
    graph = adapted_graph(write_graph(tmp_path / "model.onnx", text))
    assert shapes(graph) == {"x": (-1, 3), "weight": (-1, 1), "label": (-1, 1)}
    arrays = {"x": np.array([[1, 2, 3], [3, 2, 1]], np.float32), "weight": np.array([[1], [-1]], np.float32)}
    (label,) = session(graph.path).run(["label"], arrays)
    assert label.tolist() == [[2], [2]]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        # A recording, similarities, and a free number of rows.
        ("(float[n] x) => (float[n] y) { y = Neg(x) }", (-1,)),
        ("(float[q,3] x, float[t,3] z) => (float[q,t] y) { w = Transpose(z) y = MatMul(x, w) }", (-1, -1)),
        ("(float[n,4] x) => (int64[k,2] y) { z = NonZero(x) y = Transpose(z) }", (-1, 2)),
    ],
)
def test_what_is_not_a_batch(tmp_path: Path, text: str, shape: tuple[int, ...]) -> None:
    graph = adapted_graph(write_graph(tmp_path / "model.onnx", text))
    assert (graph.batched, graph.outputs[0].shape) == (False, shape)


def test_a_compared_number_is_found_in_a_file_beside_the_graph(tmp_path: Path) -> None:
    model = onnx.load(branches(tmp_path / "one_file.onnx").path)
    tensor = next(weight for weight in model.graph.initializer if weight.name == "wide")
    tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("int64_data")
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert Graph.read(path).compared == {"rate": 16000}


@pytest.mark.parametrize("declared", ["[n]", "[one,n]", "[n,1,7]", ""])
def test_an_output_is_served_with_the_shape_that_it_has_in_a_run(tmp_path: Path, declared: str) -> None:
    text = f"(float[n,4] x) => (float{declared} y) <int64[1] axes = {{1}}> {{ y = Unsqueeze(x, axes) }}"
    graph = adapted_graph(write_graph(tmp_path / "m.onnx", text))
    assert (len(graph.outputs[0].sizes), graph.outputs[0].shape[-1], graph.batched) == (3, -1, True)


def test_an_input_with_a_default_is_optional_and_not_served(tmp_path: Path) -> None:
    text = "(float[b,4] x, float[1] factor = {2}) => (float[b,4] y) { y = Mul(x, factor) }"
    graph = adapted_graph(write_graph(tmp_path / "model.onnx", text))
    assert [value.name for value in graph.inputs] == ["x"]


TENSOR = helper.make_tensor_type_proto


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (helper.make_optional_type_proto(TENSOR(FLOAT, ["b", 4])), "x "),
        (helper.make_sequence_type_proto(TENSOR(FLOAT, ["b", 4])), "x "),
        (TENSOR(TensorProto.COMPLEX64, ["b", 4]), "x .*complex64"),
        (TENSOR(FLOAT, None), "x .*shape"),
    ],
    ids=["optional", "sequence", "a type that Triton lacks", "an unknown shape"],
)
def test_an_input_that_triton_does_not_take_is_refused(
    tmp_path: Path, kind: onnx.TypeProto, named: str
) -> None:
    given, taken = helper.make_value_info("x", kind), helper.make_value_info("y", kind)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [given], [taken])
    onnx.save(helper.make_model(graph, opset_imports=OPSET), tmp_path / "model.onnx")
    with pytest.raises(CommandError, match=named):
        adapt(tmp_path / "model.onnx", tmp_path / "adapted.onnx", print)


def test_a_newer_file_format_is_written_as_the_newest_that_onnx_runtime_reads(tmp_path: Path) -> None:
    path = plus_one(tmp_path / "model.onnx").path
    model = onnx.load(path)
    model.ir_version = onnx.IR_VERSION
    newest = newest_ir_version()
    assert newest < onnx.IR_VERSION, "this release of onnx is no longer ahead: raise the number above by hand"
    onnx.save(model, path)
    written = adapt(path, tmp_path / "adapted.onnx", print)
    assert onnx.load(written).ir_version == newest
    assert session(written).run(["y"], {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[2.0] * 4]
