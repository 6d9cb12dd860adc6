"""Less to send: a graph takes pixels or gives objects, and answers as the client does with the plain graph."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from clients.yolov5.nms import detect_objects, read_objects
from sm.cache import Cache
from sm.client.preprocessing import Preprocessing
from sm.errors import StartError
from sm.inspection import problems
from sm.inspection.machine import Machine
from sm.repository.manifest import Manifest
from sm.tools.build import suppression
from sm.tools.build.build_request import BuildRequest
from sm.tools.build.changes import Changes
from sm.tools.build.graph_runner import session
from sm.tools.build.model_builder import ModelBuilder
from sm.tools.build.onnx_graph import Graph
from sm.tools.progress import Progress
from tests.support.onnx_graphs import plus_one, saved

FLOAT, CLASSES = TensorProto.FLOAT, 4
DESCRIPTION = {"resize": 8, "crop": 8, "channels": "BGR", "scale": 1 / 255, "mean": [0.4, 0.5, 0.6]}
DESCRIPTION |= {"std": [0.2, 0.3, 0.4]}
RANDOM = np.random.default_rng(7)


def picture(path: Path, shape: tuple[int, int, int]) -> Graph:
    """A picture as it comes, so that what it is multiplied by can be seen."""
    sizes = (FLOAT, ["b", *shape])
    return saved(path, [helper.make_node("Identity", ["x"], ["y"])], {"x": sizes}, {"y": sizes})


def detector(path: Path) -> Graph:
    """``images`` [b, 3, 4, 4] and rows of its own; here the rows are an input, so that a test says them."""
    sizes = (FLOAT, ["b", 3000, 5 + CLASSES])
    nodes = [helper.make_node("Identity", ["rows"], ["output0"])]
    return saved(path, nodes, {"rows": sizes}, {"output0": sizes})


def detector_of_pictures(path: Path) -> Path:
    """``images`` [b, 3, 6, 2], and their own numbers as rows."""
    flat = helper.make_tensor("flat", TensorProto.INT64, [3], [0, 4, 9])
    node = helper.make_node("Reshape", ["images", "flat"], ["rows"])
    given, taken = {"images": (FLOAT, ["b", 3, 6, 2])}, {"rows": (FLOAT, ["b", 4, 9])}
    return saved(path, [node], given, taken, (flat,)).path


def rows(count: int = 3000) -> NDArray[np.float32]:
    """Boxes in crowds, and scores of every height."""
    centres = RANDOM.integers(0, 12, (count, 2)) * 50 + RANDOM.normal(0, 8, (count, 2))
    extents = RANDOM.uniform(20, 60, (count, 2))
    made: NDArray[np.float32] = np.hstack([centres, extents, RANDOM.random((count, 1 + CLASSES))]).astype(
        np.float32
    )
    return made


@pytest.mark.parametrize(("layout", "shape"), [("CHW", (3, 8, 8)), ("HWC", (8, 8, 3))])
def test_pixels_become_in_the_graph_what_the_client_makes_of_them(
    tmp_path: Path, layout: str, shape: tuple[int, int, int]
) -> None:
    description = tmp_path / "preprocess.json"
    description.write_text(json.dumps({**DESCRIPTION, "layout": layout}))
    graphs = Changes(uint8=True).graphs(picture(tmp_path / "x.onnx", shape), description, tmp_path)
    (value,) = graphs.served.inputs
    assert (value.datatype, value.shape) == ("TYPE_UINT8", (-1, *shape))
    prepared = Preprocessing.read(description)
    pixels = RANDOM.integers(0, 256, (8, 8, 3), np.uint8)
    (made,) = session(graphs.served.path).run(["y"], {"x": prepared.unscaled(pixels)[None]})
    np.testing.assert_array_equal(made[0], prepared(pixels))


@pytest.mark.parametrize("confidence", [0, 0.3, 0.6, 1])
@pytest.mark.parametrize("iou", [0, 0.3, 0.45, 0.9, 1])
def test_the_graph_keeps_the_objects_that_the_client_keeps(
    tmp_path: Path, confidence: float, iou: float
) -> None:
    graph = suppression.add_suppression(detector(tmp_path / "x.onnx"), tmp_path / "y.onnx", plugin=False)
    batch = np.stack([rows(), rows(), np.zeros((3000, 5 + CLASSES), np.float32)])
    # Another record of the batch has other thresholds.
    asked = (
        np.array([[confidence], [0.5], [confidence]], np.float32),
        np.array([[iou], [0.2], [iou]], np.float32),
    )
    feed = {"rows": batch, "confidence": asked[0], "iou": asked[1]}
    (found,) = session(graph.path).run(["objects"], feed)
    assert found.shape == (3, suppression.OBJECTS, 6)
    for record, known in ((0, (confidence, iou)), (1, (0.5, 0.2))):
        ours, theirs = read_objects(found[record], known[0]), detect_objects(batch[record], *known)
        np.testing.assert_array_equal(ours.classes, theirs.classes)
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-6)
        np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=1e-3)
    assert not found[2].any()


def test_without_a_gpu_tensorrts_plugin_gets_corners_and_each_rows_best_score(tmp_path: Path) -> None:
    graph = suppression.add_suppression(detector(tmp_path / "x.onnx"), tmp_path / "y.onnx", plugin=True)
    assert [value.name for value in graph.outputs] == ["output0", "objects"]
    model = onnx.load(graph.path)
    (plugin,) = (node for node in model.graph.node if node.op_type == "EfficientNMS_TRT")
    said = {each.name: helper.get_attribute_value(each) for each in plugin.attribute}
    assert said["score_threshold"] == pytest.approx(suppression.CONFIDENCE)
    assert said["iou_threshold"] == pytest.approx(suppression.IOU)
    assert (said["max_output_boxes"], said["background_class"], said["box_coding"]) == (300, -1, 0)
    onnx.utils.extract_model(graph.path, tmp_path / "z.onnx", ["rows"], list(plugin.input), check_model=False)
    taken = rows()[None]
    boxes, scores = session(tmp_path / "z.onnx").run(list(plugin.input), {"rows": taken})
    every = taken[0, :, 4:5] * taken[0, :, 5:]
    np.testing.assert_array_equal(scores[0].max(axis=1), every.max(axis=1))
    np.testing.assert_array_equal((scores[0] > 0).sum(axis=1), 1)
    np.testing.assert_allclose((boxes[0, :, :2] + boxes[0, :, 2:]) / 2, taken[0, :, :2], atol=1e-3)


def test_a_model_is_built_with_both_and_says_so(tmp_path: Path) -> None:
    out, models = tmp_path / "out", tmp_path / "model"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "preprocess.json").write_text(json.dumps({"scale": 1 / 255}))
    engine = ModelBuilder(Cache(tmp_path / "cache"), models, Progress(io.StringIO()))
    source = detector_of_pictures(tmp_path / "x.onnx")
    folder = engine.build(BuildRequest("tiny", "onnxruntime", out, source, changes=Changes(True, True)))
    assert problems.find_problems(out, Machine(gpu=True)) == []  # this machine may lack what runs it
    manifest = Manifest.read(folder / "1")
    assert manifest is not None
    assert manifest.changes == ("uint8", "nms")
    text = (folder / "config.pbtxt").read_text()
    assert [words in text for words in ("TYPE_UINT8", '"confidence"', '"objects"', '"rows"')] == [1, 1, 1, 0]


def test_a_model_is_built_again_from_the_graph_that_was_built(tmp_path: Path) -> None:
    models = tmp_path / "model"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "preprocess.json").write_text(json.dumps({"scale": 1 / 255}))
    (models / "tiny" / "config.pbtxt").write_text(
        'name: "tiny" max_batch_size: 8\n'
        'input [{ name: "images" data_type: TYPE_FP32 dims: [3, 6, 2] }]\n'
        'output [{ name: "rows" data_type: TYPE_FP32 dims: [4, 9] }]\n'
    )
    engine = ModelBuilder(Cache(tmp_path / "cache"), models, Progress(io.StringIO()))
    source, changes = detector_of_pictures(tmp_path / "x.onnx"), []
    for out in (tmp_path / "first", tmp_path / "second"):
        folder = engine.build(BuildRequest("tiny", "onnxruntime", out, source, changes=Changes(True, True)))
        assert problems.find_problems(out, Machine(gpu=True)) == []  # this machine may lack what runs it
        manifest = Manifest.read(folder / "1")
        assert manifest is not None
        changes.append(manifest.changes)
        before, source = source, folder / "1" / "model.onnx"
    # What it says is how it differs from its source.
    assert changes == [("uint8", "nms"), ()]
    assert source.read_bytes() == before.read_bytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (Changes(uint8=True), "has 0 inputs that are a picture"),
        (Changes(nms=True), "does not give YOLOv5's rows"),
    ],
)
def test_a_graph_that_cannot_be_changed_is_a_sentence(
    tmp_path: Path, changes: Changes, sentence: str
) -> None:
    (tmp_path / "preprocess.json").write_text("{}")
    with pytest.raises(StartError, match=sentence):
        changes.graphs(plus_one(tmp_path / "x.onnx"), tmp_path / "preprocess.json", tmp_path)


def test_the_models_own_options_are_read_and_no_others(tmp_path: Path) -> None:
    assert Changes.read(tmp_path) == Changes()
    (tmp_path / "build.options").write_text("--nms --uint8\n")
    assert Changes.read(tmp_path) == Changes(uint8=True, nms=True)
    (tmp_path / "build.options").write_text("--nms --batch 1:2:3\n")
    with pytest.raises(StartError, match="--batch is not for every target"):
        Changes.read(tmp_path)
