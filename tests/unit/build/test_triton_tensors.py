"""A graph's tensors are adapted to Triton, or an error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from sm.build.graph_runner import RandomInputs, newest_ir_version, session
from sm.build.onnx_graph import DATATYPES, Graph
from sm.build.targets import place_on_cpu
from sm.build.triton_tensors import adapt
from sm.errors import CommandError
from tests.support.onnx_graphs import OPSET, branches, plus_one, save_graph, scaled

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


def weight_in(file: str, folder: Path, name: str) -> onnx.TensorProto:
    """Return a tensor of ones whose numbers are in a file of their own."""
    tensor = numpy_helper.from_array(np.ones(4, np.float32), name)
    (folder / file).write_bytes(tensor.raw_data)
    external_data_helper.set_external_data(tensor, location=file, offset=0, length=len(tensor.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    return tensor


def with_weights_in_if(folder: Path) -> list[onnx.NodeProto]:
    branches = [
        helper.make_graph(
            [helper.make_node("Add", ["x", name], [f"y_{name}"])],
            *(name, [], [helper.make_tensor_value_info(f"y_{name}", FLOAT, None)]),
            initializer=[weight_in(f"{name}.bin", folder, name)],
        )
        for name in ("one", "two")
    ]
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    return [yes, helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1])]


def with_weights_in_constant(folder: Path) -> list[onnx.NodeProto]:
    constant = helper.make_node("Constant", [], ["w"], value=weight_in("w.bin", folder, "value"))
    return [constant, helper.make_node("Add", ["x", "w"], ["y"])]


@pytest.mark.parametrize("nodes", [with_weights_in_if, with_weights_in_constant])
@pytest.mark.parametrize("as_links", [False, True])
def test_weights_beside_a_graph_go_with_it(
    tmp_path: Path, nodes: Callable[[Path], list[onnx.NodeProto]], as_links: bool
) -> None:
    """Also those of inner graphs, and from a folder of links, as the hub's cache is one."""
    source, served = tmp_path / "source", tmp_path / "served"
    (source / "blobs").mkdir(parents=True)
    served.mkdir()
    total = helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0)
    save_graph(
        source / "model.onnx",
        [*nodes(source), total],
        {"x": (FLOAT, ["b", 4])},
        {"y": (FLOAT, ["b", 4]), "total": (FLOAT, [])},
    )
    for file in [path for path in source.iterdir() if as_links and path.is_file()]:
        file.rename(source / "blobs" / file.name)
        file.symlink_to(source / "blobs" / file.name)
    graph = adapted_graph(Graph.read(source / "model.onnx"))
    place_on_cpu(graph, served)
    answer, *_ = session(served / "model.onnx").run(["y"], {"x": np.ones((1, 4), np.float32)})
    assert answer.tolist() == [[2.0] * 4]


def test_scalars_are_served_with_the_shape_1(tmp_path: Path) -> None:
    graph = adapted_graph(scaled(tmp_path / "model.onnx"))
    assert shapes(graph) == {"x": (-1, 4), "factor": (1,), "y": (-1, 4), "sum": (1,)}
    inputs = {"x": np.ones((2, 4), np.float32), "factor": np.array([3], np.float32)}
    y, total = session(graph.path).run(["y", "sum"], inputs)
    assert y.tolist() == [[3.0] * 4] * 2
    assert total.tolist() == [24.0]


def test_one_number_per_record_is_served_with_the_shape_1(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["weight", "one"], ["column"]),
        helper.make_node("Mul", ["x", "column"], ["scaled"]),
        helper.make_node("ArgMax", ["scaled"], ["label"], axis=1, keepdims=0),
    ]
    inputs = {"x": (FLOAT, ["n", 3]), "weight": (FLOAT, ["n"])}
    one, outputs = (
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        {"label": (TensorProto.INT64, ["n"])},
    )
    graph = adapted_graph(save_graph(tmp_path / "model.onnx", nodes, inputs, outputs, (one,)))
    assert shapes(graph) == {"x": (-1, 3), "weight": (-1, 1), "label": (-1, 1)}
    arrays = {"x": np.array([[1, 2, 3], [3, 2, 1]], np.float32), "weight": np.array([[1], [-1]], np.float32)}
    (label,) = session(graph.path).run(["label"], arrays)
    assert label.tolist() == [[2], [2]]


SIMILARITY = [
    helper.make_node("Transpose", ["texts"], ["columns"]),
    helper.make_node("MatMul", ["queries", "columns"], ["y"]),
]
PLACES = [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Transpose", ["z"], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "inputs", "output", "shape"),
    [
        ([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, (FLOAT, ["n"]), (-1,)),
        (SIMILARITY, {"queries": (FLOAT, ["q", 3]), "texts": (FLOAT, ["t", 3])}, (FLOAT, ["q", "t"]), (-1, -1)),
        (PLACES, {"x": (FLOAT, ["n", 4])}, (TensorProto.INT64, ["k", 2]), (-1, 2)),
    ],
    ids=["a recording", "similarities", "a free number of rows"],
)  # fmt: skip
def test_what_is_not_a_batch(tmp_path: Path, nodes: Any, inputs: Any, output: Any, shape: Any) -> None:
    graph = adapted_graph(save_graph(tmp_path / "model.onnx", nodes, inputs, {"y": output}))
    assert (graph.batched, graph.outputs[0].shape) == (False, shape)


def test_a_compared_number_is_found_in_a_file_beside_the_graph(tmp_path: Path) -> None:
    model = onnx.load(branches(tmp_path / "one_file.onnx").path)
    tensor = next(weight for weight in model.graph.initializer if weight.name == "wide")
    tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("int64_data")
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert Graph.read(path).compared == {"rate": 16000}


@pytest.mark.parametrize("declared", [["n"], ["one", "n"], ["n", 1, 7], []])
def test_an_output_is_served_with_the_shape_that_it_has_in_a_run(
    tmp_path: Path, declared: list[object]
) -> None:
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    inputs, outputs = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, declared)}
    node = helper.make_node("Unsqueeze", ["x", "axes"], ["y"])
    graph = adapted_graph(save_graph(tmp_path / "m.onnx", [node], inputs, outputs, (axes,)))
    assert len(graph.outputs[0].sizes) == 3
    assert graph.outputs[0].shape[-1] == -1
    assert graph.batched


def test_an_input_with_a_default_is_optional_and_not_served(tmp_path: Path) -> None:
    default = helper.make_tensor("factor", FLOAT, [1], [2.0])
    inputs, outputs = {"x": (FLOAT, ["b", 4]), "factor": (FLOAT, [1])}, {"y": (FLOAT, ["b", 4])}
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    graph = adapted_graph(save_graph(tmp_path / "model.onnx", [node], inputs, outputs, (default,)))
    assert [value.name for value in graph.inputs] == ["x"]


TENSOR = helper.make_tensor_type_proto


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (helper.make_optional_type_proto(TENSOR(FLOAT, ["b", 4])), "x is optional"),
        (helper.make_sequence_type_proto(TENSOR(FLOAT, ["b", 4])), "x is a sequence"),
        (TENSOR(TensorProto.COMPLEX64, ["b", 4]), "x .*complex64.* Cast"),
        (TENSOR(FLOAT, None), "x .*shape"),
    ],
    ids=["optional", "sequence", "a type that Triton lacks", "an unknown shape"],
)
def test_an_input_that_triton_does_not_take_is_refused_by_its_name(
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
