"""Changes of a graph: it takes uint8 pixels or returns objects, and gives the same answers as before."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from sm import hardware
from sm.client.detection import detect_objects, read_objects
from sm.client.preprocessing import Preprocessing
from sm.errors import CommandError
from sm.repository.machine import Machine
from sm.repository.manifest import Manifest
from tests.support.onnx_graphs import plus_one, write_graph
from tests.support.plans import certain_problems
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.model_builder import ModelBuilder
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import suppression
from trireme_tools.build.changes import GraphChanges
from trireme_tools.desk_builder import DeskBuilder
from trireme_tools.progress import Progress

CLASSES = 4
DESCRIPTION = {"resize": 8, "crop": 8, "channels": "BGR", "scale": 1 / 255, "mean": [0.4, 0.5, 0.6]}
DESCRIPTION |= {"std": [0.2, 0.3, 0.4]}
RNG = np.random.default_rng(7)


def rows_graph(path: Path, count: int = 3000) -> Graph:
    """A detector whose rows are its input, so that a test can choose them."""
    sizes = f"[b,{count},{5 + CLASSES}]"
    return write_graph(path, f"(float{sizes} rows) => (float{sizes} output0) {{ output0 = Identity(rows) }}")


def random_rows(count: int = 3000) -> NDArray[np.float32]:
    """Crowded boxes with scores of all sizes."""
    centres = RNG.integers(0, 12, (count, 2)) * 50 + RNG.normal(0, 8, (count, 2))
    extents = RNG.uniform(20, 60, (count, 2))
    return np.hstack([centres, extents, RNG.random((count, 1 + CLASSES))], dtype=np.float32)


@pytest.mark.parametrize(("layout", "shape"), [("CHW", "3,8,8"), ("HWC", "8,8,3")])
def test_a_uint8_graph_scales_pixels_as_the_client_does(tmp_path: Path, layout: str, shape: str) -> None:
    description = tmp_path / "preprocess.json"
    description.write_text(json.dumps({**DESCRIPTION, "layout": layout}))
    # It returns its picture, so that the scaling added before it can be seen.
    text = f"(float[b,{shape}] x) => (float[b,{shape}] y) {{ y = Identity(x) }}"
    graphs = GraphChanges(uint8=True).graphs(write_graph(tmp_path / "x.onnx", text), description, tmp_path)
    (value,) = graphs.served.inputs
    assert (value.datatype, value.shape) == ("TYPE_UINT8", (-1, *map(int, shape.split(","))))
    prepared = Preprocessing.read(description)
    pixels = RNG.integers(0, 256, (8, 8, 3), np.uint8)
    (scaled,) = session(graphs.served.path).run(["y"], {"x": prepared.unscaled(pixels)[None]})
    np.testing.assert_array_equal(scaled[0], prepared(pixels))


def assert_same_objects(
    objects: NDArray[np.float32], rows: NDArray[np.float32], confidence: float, iou: float
) -> None:
    """The objects of a graph are those that the client finds in the rows of a record."""
    from_graph, from_client = read_objects(objects, confidence), detect_objects(rows, confidence, iou)
    np.testing.assert_array_equal(from_graph.classes, from_client.classes)
    np.testing.assert_allclose(from_graph.scores, from_client.scores, rtol=1e-6)
    np.testing.assert_allclose(from_graph.boxes, from_client.boxes, atol=1e-3)


@pytest.mark.parametrize(("confidence", "iou"), [(0, 0.45), (0.3, 0), (0.3, 1), (0.6, 0.3), (1, 0.9)])
def test_suppression_keeps_the_same_objects_as_the_client(
    tmp_path: Path, confidence: float, iou: float
) -> None:
    graph = suppression.add_suppression(rows_graph(tmp_path / "x.onnx"), tmp_path / "y.onnx", "records")
    batch = np.stack([random_rows(), random_rows(), np.zeros((3000, 5 + CLASSES), np.float32)])
    # The second record of the batch has other thresholds.
    thresholds = np.array([(confidence, iou), (0.5, 0.2), (confidence, iou)], np.float32)
    feed = {"rows": batch, "confidence": thresholds[:, :1], "iou": thresholds[:, 1:]}
    (objects,) = session(graph.path).run(["objects"], feed)
    assert objects.shape == (3, suppression.OBJECTS, 6)
    assert_same_objects(objects[0], batch[0], confidence, iou)
    assert_same_objects(objects[1], batch[1], 0.5, 0.2)
    assert not objects[2].any()


@pytest.mark.parametrize("count", [3, 1500])
def test_a_plan_with_the_operator_keeps_the_same_objects_as_the_client(tmp_path: Path, count: int) -> None:
    """The graph of the plan runs on ONNX Runtime, which stands in for TensorRT's layer of that operator."""
    graph = suppression.add_suppression(
        rows_graph(tmp_path / "x.onnx", count), tmp_path / "y.onnx", "operator"
    )
    assert [entry.domain for entry in onnx.load(graph.path).opset_import] == [""]
    batch = np.stack([random_rows(count), np.zeros((count, 5 + CLASSES), np.float32), random_rows(count)])
    rows, objects = session(graph.path).run(["output0", "objects"], {"rows": batch})
    np.testing.assert_array_equal(rows, batch)
    assert objects.shape == (3, suppression.OBJECTS, 6)
    for record in range(3):
        assert_same_objects(objects[record], batch[record], suppression.CONFIDENCE, suppression.IOU)
    assert [len(read_objects(each, suppression.CONFIDENCE)) > 1 for each in objects] == [True, False, True]


@pytest.mark.parametrize(
    ("tensorrt", "way"), [(None, "operator"), ("10.11.0", "plugin"), ("10.12.0.36", "operator")]
)
def test_a_plan_has_the_plugin_until_it_is_deprecated(
    monkeypatch: pytest.MonkeyPatch, tensorrt: str | None, way: str
) -> None:
    monkeypatch.setattr(hardware, "tensorrt", lambda: tensorrt)
    assert (suppression.way_for("tensorrt"), suppression.way_for("cpu")) == (way, "records")


def test_tensorrts_plugin_gets_box_corners_and_the_best_score_of_each_row(tmp_path: Path) -> None:
    graph = suppression.add_suppression(rows_graph(tmp_path / "x.onnx"), tmp_path / "y.onnx", "plugin")
    model = onnx.load(graph.path)
    (plugin,) = (node for node in model.graph.node if node.op_type == "EfficientNMS_TRT")
    attributes = {item.name: helper.get_attribute_value(item) for item in plugin.attribute}
    assert attributes["score_threshold"] == pytest.approx(suppression.CONFIDENCE)
    assert attributes["iou_threshold"] == pytest.approx(suppression.IOU)
    names = ("max_output_boxes", "background_class", "box_coding")
    assert [attributes[name] for name in names] == [1000, -1, 0]
    onnx.utils.extract_model(graph.path, tmp_path / "z.onnx", ["rows"], list(plugin.input), check_model=False)
    batch = random_rows()[None]
    boxes, scores = session(tmp_path / "z.onnx").run(list(plugin.input), {"rows": batch})
    class_scores = batch[0, :, 4:5] * batch[0, :, 5:]
    np.testing.assert_array_equal(scores[0].max(axis=1), class_scores.max(axis=1))
    np.testing.assert_array_equal((scores[0] > 0).sum(axis=1), 1)
    np.testing.assert_allclose((boxes[0, :, :2] + boxes[0, :, 2:]) / 2, batch[0, :, :2], atol=1e-3)


def test_a_model_may_be_built_with_both_changes_and_from_its_own_graph_again(tmp_path: Path) -> None:
    models = tmp_path / "model"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "preprocess.json").write_text(json.dumps({"scale": 1 / 255}))
    (models / "tiny" / "config.pbtxt").write_text(
        'name: "tiny" max_batch_size: 8\n'
        'input [{ name: "images" data_type: TYPE_FP32 dims: [3, 6, 2] }]\n'
        'output [{ name: "rows" data_type: TYPE_FP32 dims: [4, 9] }]\n'
    )
    places = tmp_path / "cache", models, Progress(io.StringIO())
    # A detector that returns the pixels as its rows.
    text = "(float[b,3,6,2] images) => (float[b,4,9] rows) <int64[3] flat = {0, 4, 9}> { rows = Reshape(images, flat) }"
    source, changes = write_graph(tmp_path / "x.onnx", text).path, []
    # The last builds without the tools, as in the image.
    for number, kind in enumerate((DeskBuilder, DeskBuilder, ModelBuilder)):
        out = tmp_path / str(number)
        request = BuildRequest("tiny", "onnxruntime", out, source, changes=("uint8", "nms"))
        folder = kind(*places).build(request)
        assert certain_problems(out, Machine(gpu=True)) == []  # this machine may lack the backend
        manifest = Manifest.read(folder / "1")
        assert manifest is not None
        changes.append(manifest.changes)
        config = (folder / "config.pbtxt").read_text()
        words = ("TYPE_UINT8", '"confidence"', '"objects"', '"rows"')
        assert [word for word in words if word in config] == [*words[:3]]
        first_graph, source = source, folder / "1" / "model.onnx"
    # The manifest names the changes since the source, which had both already.
    assert changes == [("uint8", "nms"), (), ()]
    assert source.read_bytes() == first_graph.read_bytes()


@pytest.mark.parametrize(
    "changes", [GraphChanges(uint8=True), GraphChanges(nms=True)], ids=["without a picture", "without rows"]
)
def test_a_graph_that_cannot_be_changed_is_refused_by_its_file(tmp_path: Path, changes: GraphChanges) -> None:
    (tmp_path / "preprocess.json").write_text("{}")
    with pytest.raises(CommandError, match="x.onnx"):
        changes.graphs(plus_one(tmp_path / "x.onnx"), tmp_path / "preprocess.json", tmp_path)
