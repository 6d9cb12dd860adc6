"""int8 of the demo's real graphs as TensorRT gets them: its parser refuses a DequantizeLinear that reads INT32."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sm.build.onnx_graph import Graph
from sm.build.targets import convert_precision
from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.settings import HERE, Settings
from trireme_tools.prepare.demo import build_recipe


def cut_layers(graph: Path, out: Path) -> Path:
    """Write BERT up to the end of its first layer; the eleven others have the same nodes and take minutes."""
    nodes = onnx.load(graph).graph.node
    end = next(place for place, node in enumerate(nodes) if "/layer.1/" in node.name)
    inputs = [value.name for value in Graph.read(graph).inputs]
    onnx.utils.extract_model(graph, out, inputs, [nodes[end - 1].output[0]], check_model=False)
    assert {node.op_type for node in onnx.load(out).graph.node} == {node.op_type for node in nodes}
    return out


def element_types(graph: onnx.GraphProto) -> Mapping[str, int]:
    """Return the element types of weights and constants, by name."""
    weights = {weight.name: weight.data_type for weight in graph.initializer}
    constants = (node for node in graph.node if node.op_type == "Constant")
    return weights | {
        node.output[0]: item.t.data_type
        for node in constants
        for item in node.attribute
        if item.name == "value"
    }


# Calibration runs the graph, and each weight is quantized for each channel: 5 to 10 s each.
# bert_base is cut to one layer; the two whole graphs take a processor for 20 s.
@pytest.mark.parametrize(
    "name",
    ["bert_base", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("resnet", "yolov5"))],
)
def test_int8_of_a_real_graph_dequantizes_no_int32(tmp_path: Path, name: str) -> None:
    cache = Cache(Settings.read({}).cache)
    source = build_recipe(cache, HERE / "model" / name, Progress(io.StringIO())) / "model.onnx"
    graph = Graph.read(cut_layers(source, tmp_path / "cut.onnx") if name == "bert_base" else source)
    (tmp_path / "typical").mkdir()
    shapes = {
        value.name: [size if isinstance(size, int) else 1 for size in value.sizes] for value in graph.inputs
    }
    types = {value.name: np.int64 if value.datatype == "TYPE_INT64" else np.float32 for value in graph.inputs}
    np.savez(tmp_path / "typical" / "0.npz", **{each: np.ones(shapes[each], types[each]) for each in shapes})

    quantized = convert_precision(graph, "int8", tmp_path / "typical", tmp_path / "int8.onnx")

    loaded = onnx.load(quantized.path).graph
    known = element_types(loaded)
    read = [known.get(node.input[0]) for node in loaded.node if node.op_type == "DequantizeLinear"]
    assert read
    assert TensorProto.INT32 not in read
    points = {
        known[node.input[2]] for node in loaded.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    assert points == {TensorProto.INT8}
