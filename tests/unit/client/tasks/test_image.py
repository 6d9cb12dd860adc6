"""Tasks of pictures answer what plain NumPy computes from the outputs of the same graph."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from sm.client.base import TensorClient
from sm.client.tasks.detection import find_layout
from sm.client.tensor_roles import UnsuitableModel
from sm.errors import StartError
from tests.support.onnx_graphs import save_graph
from tests.support.task_models import load_task, write_segmenter

LABELS = ("red", "green", "blue")
#: Centre x and y, width, height, objectness, a score for each class, in an input of 8 by 8 pixels.
V5_ROWS = np.array(
    [[2, 2, 4, 4, 0.9, 0.1, 0.8, 0.1], [2, 2, 4, 3.9, 0.8, 0.1, 0.8, 0.1], [6, 6, 2, 2, 1, 0.6, 0, 0]]
    + [[4, 4, 1, 1, 0, 0, 0, 0]] * 9,
    np.float32,
)


def picture(width: int, height: int, colour: tuple[int, int, int] = (0, 255, 0)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def ask(client: TensorClient, **payload: Any) -> Any:
    return client.inference(client.payload.model_validate(payload))


def write_classifier(folder: Path, labels: tuple[str, ...] = LABELS) -> None:
    """Write a graph whose scores are the mean of each channel, and its description."""
    save_graph(
        folder / "model.onnx",
        [helper.make_node("ReduceMean", ["pixel_values"], ["logits"], axes=[2, 3], keepdims=0)],
        {"pixel_values": (TensorProto.FLOAT, ["b", 3, 8, 8])},
        {"logits": (TensorProto.FLOAT, ["b", 3])},
    )
    (folder / "labels.txt").write_text("\n".join(labels))
    (folder / "preprocess.json").write_text(
        json.dumps({"resize": 8, "crop": 8, "channels": "RGB", "scale": 1 / 255})
    )


def write_detector(folder: Path, rows: NDArray[np.float32], masks: int = 0) -> None:
    """Write a graph that gives the same rows for every picture, and so many prototypes of masks."""
    nodes = [
        helper.make_node("ReduceSum", ["images"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "rows"], ["output0"]),
    ]
    weights: tuple[TensorProto, ...] = (
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(rows[None], "rows"),
    )
    given = {"images": (TensorProto.FLOAT, [1, 3, 8, 8])}
    outputs = {"output0": (TensorProto.FLOAT, [1, *rows.shape])}
    if masks:
        nodes.append(helper.make_node("Expand", ["nothing", "sides"], ["output1"]))
        weights = (*weights, numpy_helper.from_array(np.array([1, masks, 2, 2]), "sides"))
        outputs["output1"] = (TensorProto.FLOAT, [1, masks, 2, 2])
    save_graph(folder / "model.onnx", nodes, given, outputs, weights)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    (folder / "preprocess.json").write_text(
        json.dumps({"size": 8, "fill": 114, "channels": "RGB", "scale": 1 / 255})
    )


def test_image_classification_ranks_the_labels(tmp_path: Path) -> None:
    write_classifier(tmp_path / "colours")
    client = load_task(tmp_path / "colours", task="image-classification")
    answer = ask(client, image=picture(20, 10), parameters={"top": 2})
    expected = np.exp([1, 0, 0]) / np.exp([1, 0, 0]).sum()
    assert [row["label"] for row in answer] == ["green", "red"]
    assert [row["score"] for row in answer] == pytest.approx(expected[:2], abs=1e-6)


def test_labels_of_the_wrong_number_are_refused_with_both(tmp_path: Path) -> None:
    write_classifier(tmp_path / "colours", LABELS[:2])
    with pytest.raises(StartError, match="labels"):
        load_task(tmp_path / "colours", task="image-classification")


def test_a_classifier_is_no_detector(tmp_path: Path) -> None:
    write_classifier(tmp_path / "colours")
    with pytest.raises(UnsuitableModel):
        load_task(tmp_path / "colours", task="object-detection")


def rows_of(head: str) -> NDArray[np.float32]:
    """The same objects as each head writes them."""
    if head == "v5":
        return V5_ROWS
    scores = V5_ROWS[:, 5:] * V5_ROWS[:, 4:5]
    if head == "v8":
        return np.ascontiguousarray(np.hstack([V5_ROWS[:, :4], scores]).T)
    centre, half = V5_ROWS[:, :2], V5_ROWS[:, 2:4] / 2
    columns = [centre - half, centre + half, scores.max(axis=1)[:, None], scores.argmax(axis=1)[:, None]]
    return np.hstack(columns)[[0, 2, 3, 4]].astype(np.float32)


@pytest.mark.parametrize("head", ["v5", "v8", "nms"])
def test_every_head_of_yolo_finds_the_same_objects(tmp_path: Path, head: str) -> None:
    write_detector(tmp_path / "boxes", rows_of(head))
    answer = ask(load_task(tmp_path / "boxes", task="object-detection"), image=picture(80, 80))
    assert sorted(answer, key=lambda row: -row["score"]) == [
        {"label": "green", "class_id": 1, "score": 0.72, "box": {"x1": 0, "y1": 0, "x2": 40, "y2": 40}},
        {"label": "red", "class_id": 0, "score": 0.6, "box": {"x1": 50, "y1": 50, "x2": 70, "y2": 70}},
    ]


FREE, VGA = (-1, -1), (640, 640)


@pytest.mark.parametrize(
    ("shape", "labels", "extra", "image", "head", "has_rows"),
    [
        # As Ultralytics exports them for 640 by 640 pixels, with and without labels.
        ((25200, 85), 80, 0, VGA, "v5", True),
        ((25200, 85), 0, 0, VGA, "v5", True),
        ((25200, 6), 1, 0, VGA, "v5", True),
        ((25200, 6), 0, 0, VGA, "v5", True),
        ((25200, 7), 2, 0, VGA, "v5", True),
        ((25200, 117), 80, 32, VGA, "v5", True),
        ((25200, 38), 1, 32, VGA, "v5", True),
        ((102000, 6), 1, 0, (1280, 1280), "v5", True),
        ((-1, 85), 80, 0, FREE, "v5", True),
        ((-1, 85), 0, 0, FREE, "v5", True),
        ((84, 8400), 80, 0, VGA, "v8", False),
        ((84, 8400), 0, 0, VGA, "v8", False),
        ((5, 8400), 1, 0, VGA, "v8", False),
        ((6, 8400), 2, 0, VGA, "v8", False),
        ((116, 8400), 80, 32, VGA, "v8", False),
        ((37, 8400), 1, 32, VGA, "v8", False),
        ((56, 8400), 1, 51, VGA, "v8", False),
        ((84, -1), 80, 0, FREE, "v8", False),
        ((300, 6), 80, 0, VGA, "nms", True),
        ((300, 6), 1, 0, VGA, "nms", True),
        ((12, 6), 1, 0, (8, 8), "v5", True),
        ((6000, 6), 1, 0, VGA, "v5", True),
        ((300, 6), 2, 0, VGA, "nms", True),
        ((300, 6), 0, 0, VGA, "nms", True),
        ((300, 38), 80, 32, VGA, "nms", True),
        ((-1, 6), 80, 0, FREE, "nms", True),
        # The same the other way round.
        ((8400, 84), 80, 0, VGA, "v8", True),
        ((8400, 6), 2, 0, VGA, "v8", True),
    ],
)
def test_a_head_is_known_by_the_labels_the_rows_and_the_columns(
    shape: tuple[int, int], labels: int, extra: int, image: tuple[int, int], head: str, has_rows: bool
) -> None:
    layout = find_layout(shape, labels, extra, image)
    assert (layout.head, layout.has_rows) == (head, has_rows)


@pytest.mark.parametrize(
    ("shape", "labels", "image"),
    [
        ((12, 6), 1, FREE),  # a YOLOv5 of one class, or boxes after suppression
        ((-1, 6), 1, FREE),
        ((-1, 6), 0, FREE),
        ((300, 6), 0, FREE),
        ((-1, 6), 2, FREE),
        ((84, -1), 0, FREE),
        ((6, 8400), 1, VGA),  # a YOLOv5 the other way round, or boxes with an angle
        ((85, 25200), 80, VGA),
        ((56, 8400), 1, VGA),  # keypoints
        ((25200, 85), 79, VGA),
        ((300, 7), 1, VGA),
    ],
)
def test_a_start_asks_for_a_head_that_the_shape_does_not_tell(
    shape: tuple[int, int], labels: int, image: tuple[int, int]
) -> None:
    with pytest.raises(UnsuitableModel, match=r"task\.json"):
        find_layout(shape, labels, 0, image)


def test_one_class_of_a_named_head_is_read_with_its_objectness(tmp_path: Path) -> None:
    rows = np.zeros((12, 6), np.float32)
    rows[:2] = [[4, 4, 4, 4, 0.9, 0.8], [4, 4, 4, 3.9, 0.8, 0.8]]
    expected = {
        "label": "thing",
        "class_id": 0,
        "score": 0.72,
        "box": {"x1": 20, "y1": 20, "x2": 60, "y2": 60},
    }
    for has_rows in (True, False):
        folder = tmp_path / f"boxes{has_rows}"
        write_detector(folder, rows if has_rows else np.ascontiguousarray(rows.T))
        (folder / "labels.txt").write_text("thing\n")
        if not has_rows:
            with pytest.raises(StartError, match="head"):
                load_task(folder, task="object-detection")
        client = load_task(folder, task="object-detection", **({} if has_rows else {"head": "v5"}))
        assert ask(client, image=picture(80, 80)) == [expected]


@pytest.mark.parametrize("head", ["v5", "v8", "nms"])
@pytest.mark.parametrize("masks", [True, False])
def test_what_stands_behind_the_classes_is_not_a_class(tmp_path: Path, head: str, masks: bool) -> None:
    """Masks choose how much of each prototype they have; keypoints are written into task.json."""
    rows = rows_of(head)
    rows = rows.T if head == "v8" else rows
    more = np.full((len(rows), 7), 7, np.float32)
    rows = np.hstack([rows, more])
    write_detector(
        tmp_path / "boxes", np.ascontiguousarray(rows.T if head == "v8" else rows), masks=7 * masks
    )
    options = {} if masks else {"head": head, "extra": 7}
    client = load_task(tmp_path / "boxes", task="object-detection", **options)
    answer = ask(client, image=picture(80, 80))
    assert {(row["label"], row["score"]) for row in answer} == {("green", 0.72), ("red", 0.6)}


@pytest.mark.parametrize(("normalise", "expected"), [(True, [0, 1, 0]), (False, [0, 0.502, 0])])
def test_an_image_embedding_is_the_models_vector(
    tmp_path: Path, normalise: bool, expected: list[float]
) -> None:
    write_classifier(tmp_path / "pictures")
    client = load_task(tmp_path / "pictures", task="image-embeddings", normalise=normalise)
    answer = ask(client, image=picture(20, 10, (0, 128, 0)))
    np.testing.assert_allclose(answer["embedding"], expected, atol=1e-3)


@pytest.mark.parametrize("nothing", [True, False])
def test_detr_and_its_relatives_give_shares_of_the_picture(tmp_path: Path, nothing: bool) -> None:
    folder = tmp_path / "boxes"
    logits = np.array([[9, 0, 0, -3], [0, 1, 0, 8], [0, 0, 7, 1]], np.float32)[:, : 3 + nothing]
    outputs = {"logits": logits, "pred_boxes": np.array([[0.5, 0.5, 0.5, 1]] * 3, np.float32)}
    nodes = [
        helper.make_node("ReduceSum", ["pixel_values"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["none"]),
        *(helper.make_node("Add", ["none", f"{name}_rows"], [name]) for name in outputs),
    ]
    weights = [numpy_helper.from_array(rows[None], f"{name}_rows") for name, rows in outputs.items()]
    weights.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    save_graph(
        folder / "model.onnx",
        nodes,
        {"pixel_values": (TensorProto.FLOAT, [1, 3, 8, 8])},
        {name: (TensorProto.FLOAT, [1, *rows.shape]) for name, rows in outputs.items()},
        tuple(weights),
    )
    (folder / "labels.txt").write_text("\n".join(LABELS))
    (folder / "preprocess.json").write_text(
        json.dumps({"resize": 8, "crop": 8, "fit": "squash", "channels": "RGB", "scale": 1 / 255})
    )
    client = load_task(folder, task="object-detection")
    answer = ask(client, image=picture(40, 20), parameters={"confidence": 0.9})
    box = {"x1": 10, "y1": 0, "x2": 30, "y2": 20}
    powers = np.exp(logits.astype(np.float64))
    scores = powers / powers.sum(axis=1, keepdims=True) if nothing else powers / (1 + powers)
    assert answer == [
        {"label": "red", "class_id": 0, "score": pytest.approx(scores[0, 0], abs=1e-4), "box": box},
        {"label": "blue", "class_id": 2, "score": pytest.approx(scores[2, 2], abs=1e-4), "box": box},
    ]


def decode(mask: dict[str, Any]) -> NDArray[np.bool_]:
    """Decode COCO's run lengths."""
    height, width = mask["size"]
    inside = np.arange(len(mask["counts"])) % 2 == 1
    return np.repeat(inside, mask["counts"]).reshape(width, height).T


def interpolate(plane: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Enlarge as torch's bilinear interpolation does, in float64."""
    side = len(plane)
    ys, xs = (np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, side - 1) for size in (height, width))
    top, left = np.floor(ys).astype(int), np.floor(xs).astype(int)
    bottom, right = np.minimum(top + 1, side - 1), np.minimum(left + 1, side - 1)
    x, y = xs - left, (ys - top)[:, None]
    upper = plane[top][:, left] * (1 - x) + plane[top][:, right] * x
    lower = plane[bottom][:, left] * (1 - x) + plane[bottom][:, right] * x
    enlarged: NDArray[Any] = upper * (1 - y) + lower * y
    return enlarged


def test_masks_are_the_best_class_of_each_pixel_of_the_picture(tmp_path: Path) -> None:
    write_segmenter(tmp_path / "areas", LABELS)
    client = load_task(tmp_path / "areas", task="image-segmentation")
    pixels = np.random.default_rng(4).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    pixels[..., 2] //= 2
    large = np.repeat(np.repeat(pixels, 5, axis=0), 7, axis=1)  # 56 by 40; resized it is the 8 by 8 again
    file = io.BytesIO()
    Image.fromarray(large).save(file, "PNG")
    logits = pixels.astype(np.float64).reshape(4, 2, 4, 2, 3).mean(axis=(1, 3)) / 255
    best = np.stack([interpolate(logits[..., each], 56, 40) for each in range(3)]).argmax(axis=0)

    answer = ask(client, image=file.getvalue())
    assert [row["share"] for row in answer] == sorted((row["share"] for row in answer), reverse=True)
    assert {row["label"] for row in answer} == {LABELS[number] for number in np.unique(best)}
    masks = {row["label"]: decode(row["mask"]) for row in answer}
    for label, mask in masks.items():
        # float32 may decide another way where two classes are equal.
        assert np.mean(mask != (best == LABELS.index(label))) < 0.01
    assert (np.sum([*masks.values()], axis=0) == 1).all()


def test_masks_of_a_large_picture_have_at_most_1024_pixels_on_a_side(tmp_path: Path) -> None:
    write_segmenter(tmp_path / "areas", LABELS)
    client = load_task(tmp_path / "areas", task="image-segmentation")
    (row,) = ask(client, image=picture(4096, 1000))
    assert row == {"label": "green", "share": 1.0, "mask": {"size": [250, 1024], "counts": [0, 250 * 1024]}}


@pytest.mark.parametrize(
    ("fit", "task", "named"),
    [("crop", "image-segmentation", "squash"), ("squash", "image-classification", "1 dimensions")],
)
def test_a_segmenter_that_cannot_do_its_task_stops_the_start(
    tmp_path: Path, fit: str, task: str, named: str
) -> None:
    folder = tmp_path / "areas"
    write_segmenter(folder, LABELS)
    described = json.loads((folder / "preprocess.json").read_text())
    (folder / "preprocess.json").write_text(json.dumps({**described, "fit": fit}))
    with pytest.raises(StartError, match=named):
        load_task(folder, task=task)
