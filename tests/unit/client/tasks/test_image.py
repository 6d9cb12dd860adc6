"""Tasks of pictures answer what plain NumPy computes from the outputs of the same graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sm.client.tensor_roles import UnsuitableModel
from sm.errors import StartError
from tests.support.hostile_pictures import encode
from tests.support.onnx_graphs import write_graph
from tests.support.task_models import ask, describe_pictures, load_task, write_constants, write_segmenter
from trireme_extensions.tasks.detection import find_layout

LABELS = ("red", "green", "blue")
#: Centre x and y, width, height, objectness, a score for each class, in an input of 8 by 8 pixels.
V5_ROWS = np.array(
    [[2, 2, 4, 4, 0.9, 0.1, 0.8, 0.1], [2, 2, 4, 3.9, 0.8, 0.1, 0.8, 0.1], [6, 6, 2, 2, 1, 0.6, 0, 0]]
    + [[4, 4, 1, 1, 0, 0, 0, 0]] * 9,
    np.float32,
)


def picture(width: int, height: int, colour: tuple[int, int, int] = (0, 255, 0)) -> bytes:
    return encode(Image.new("RGB", (width, height), colour), "PNG")


def write_classifier(folder: Path, labels: tuple[str, ...] = LABELS) -> None:
    """Write a graph whose scores are the mean of each channel, and its description."""
    mean = "logits = ReduceMean<axes = [2, 3], keepdims = 0>(pixel_values)"
    write_graph(folder / "model.onnx", f"(float[b,3,8,8] pixel_values) => (float[b,3] logits) {{ {mean} }}")
    describe_pictures(folder, labels, resize=8, crop=8)


def write_detector(
    folder: Path, rows: NDArray[np.float32], masks: int = 0, labels: tuple[str, ...] = LABELS
) -> None:
    """Write a detector of these rows, and of so many prototypes of masks."""
    more = {"output1": np.zeros((masks, 2, 2), np.float32)} if masks else {}
    write_constants(folder, "images", {"output0": np.ascontiguousarray(rows), **more})
    describe_pictures(folder, labels, size=8, fill=114)


def rows_of(head: str) -> NDArray[np.float32]:
    """The same objects as each head writes them."""
    if head == "v5":
        return V5_ROWS
    scores = V5_ROWS[:, 5:] * V5_ROWS[:, 4:5]
    if head == "v8":
        return np.hstack([V5_ROWS[:, :4], scores]).T
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
    ("shape", "labels", "extra", "image", "head"),
    [
        # As Ultralytics exports them for 640 by 640 pixels, with and without labels.
        *(
            ((25200, columns), labels, 0, VGA, "v5")
            for columns, labels in ((85, 80), (85, 0), (6, 1), (7, 2))
        ),
        ((25200, 117), 80, 32, VGA, "v5"),
        ((102000, 6), 1, 0, (1280, 1280), "v5"),
        ((-1, 85), 80, 0, FREE, "v5"),
        ((12, 6), 1, 0, (8, 8), "v5"),
        *(((rows, 8400), labels, 0, VGA, "v8") for rows, labels in ((84, 80), (84, 0), (6, 2))),
        ((37, 8400), 1, 32, VGA, "v8"),
        ((84, -1), 80, 0, FREE, "v8"),
        *(((300, 6), labels, 0, VGA, "nms") for labels in (80, 1, 0)),
        ((300, 38), 80, 32, VGA, "nms"),
        ((-1, 6), 80, 0, FREE, "nms"),
        # The same the other way round.
        ((8400, 84), 80, 0, VGA, "v8"),
        ((8400, 6), 2, 0, VGA, "v8"),
        ((12, 6), 1, 0, FREE, ""),  # a YOLOv5 of one class, or boxes after suppression
        *(
            (shape, labels, 0, FREE, "")
            for shape, labels in (((-1, 6), 0), ((300, 6), 0), ((-1, 6), 2), ((84, -1), 0))
        ),
        ((6, 8400), 1, 0, VGA, ""),  # a YOLOv5 the other way round, or boxes with an angle
        ((56, 8400), 1, 0, VGA, ""),  # keypoints
        ((25200, 85), 79, 0, VGA, ""),
    ],
)
def test_a_head_is_known_by_the_labels_the_rows_and_the_columns_or_asked_for(
    shape: tuple[int, int], labels: int, extra: int, image: tuple[int, int], head: str
) -> None:
    if not head:
        with pytest.raises(UnsuitableModel, match=r"task\.json"):
            find_layout(shape, labels, extra, image)
        return
    layout = find_layout(shape, labels, extra, image)
    # A v8 has columns for its rows, unless it lies the other way round.
    assert (layout.head, layout.has_rows) == (head, head != "v8" or shape[0] == 8400)


def test_one_class_of_a_named_head_is_read_with_its_objectness(tmp_path: Path) -> None:
    rows = np.zeros((12, 6), np.float32)
    rows[:2] = [[4, 4, 4, 4, 0.9, 0.8], [4, 4, 4, 3.9, 0.8, 0.8]]
    box = {"x1": 20, "y1": 20, "x2": 60, "y2": 60}
    for turned, options in ((rows, {}), (rows.T, {"head": "v5"})):
        write_detector(tmp_path / "boxes", turned, labels=("thing",))
        client = load_task(tmp_path / "boxes", task="object-detection", **options)
        assert ask(client, image=picture(80, 80)) == [
            {"label": "thing", "class_id": 0, "score": 0.72, "box": box}
        ]
    with pytest.raises(StartError, match="head"):
        load_task(tmp_path / "boxes", task="object-detection")


@pytest.mark.parametrize("head", ["v5", "v8", "nms"])
@pytest.mark.parametrize("masks", [True, False])
def test_what_stands_behind_the_classes_is_not_a_class(tmp_path: Path, head: str, masks: bool) -> None:
    """Masks choose how much of each prototype they have; keypoints are written into task.json."""
    rows = rows_of(head).T if head == "v8" else rows_of(head)
    rows = np.hstack([rows, np.full((len(rows), 7), 7, np.float32)])
    write_detector(tmp_path / "boxes", rows.T if head == "v8" else rows, masks=7 * masks)
    options = {} if masks else {"head": head, "extra": 7}
    answer = ask(load_task(tmp_path / "boxes", task="object-detection", **options), image=picture(80, 80))
    assert {(row["label"], row["score"]) for row in answer} == {("green", 0.72), ("red", 0.6)}


@pytest.mark.parametrize(("normalise", "expected"), [(True, [0, 1, 0]), (False, [0, 0.502, 0])])
def test_an_image_embedding_is_the_models_vector(
    tmp_path: Path, normalise: bool, expected: list[float]
) -> None:
    write_classifier(tmp_path / "pictures")
    client = load_task(tmp_path / "pictures", task="image-embeddings", normalise=normalise)
    np.testing.assert_allclose(
        ask(client, image=picture(20, 10, (0, 128, 0)))["embedding"], expected, atol=1e-3
    )


def test_relatives_of_detr_without_a_class_of_nothing_have_a_probability_of_each(tmp_path: Path) -> None:
    logits = np.array([[9, 0, 0], [0, 1, 0], [0, 0, 7]], np.float32)
    boxes = np.array([[0.5, 0.5, 0.5, 1]] * 3, np.float32)
    write_constants(tmp_path / "boxes", "pixel_values", {"logits": logits, "pred_boxes": boxes})
    describe_pictures(tmp_path / "boxes", LABELS, resize=8, crop=8, fit="squash")
    answer = ask(
        load_task(tmp_path / "boxes", task="object-detection"),
        image=picture(40, 20),
        parameters={"confidence": 0.9},
    )
    assert [(row["label"], row["score"]) for row in answer] == [
        (label, pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-4))
        for label, logit in (("red", 9), ("blue", 7))
    ]
    assert answer[0]["box"] == {"x1": 10, "y1": 0, "x2": 30, "y2": 20}


def test_masks_are_run_lengths_of_at_most_1024_pixels_on_a_side(tmp_path: Path) -> None:
    write_segmenter(tmp_path / "areas", LABELS)
    client = load_task(tmp_path / "areas", task="image-segmentation")
    (row,) = ask(client, image=picture(4096, 1000))
    assert row == {"label": "green", "share": 1.0, "mask": {"size": [250, 1024], "counts": [0, 250 * 1024]}}
    halves = np.zeros((8, 8, 3), np.uint8)
    halves[:, :4, 0] = halves[:, 4:, 1] = 255
    rows = ask(client, image=encode(Image.fromarray(halves), "PNG"))
    masks = {row["label"]: row["mask"]["counts"] for row in rows}
    assert masks == {"red": [0, 32, 32], "green": [32, 32]}


@pytest.mark.parametrize(
    ("write", "labels", "steps", "task", "named"),
    [
        (write_classifier, 2, {"resize": 8, "crop": 8}, "image-classification", "labels"),
        (write_classifier, 3, {"resize": 8, "crop": 8}, "object-detection", "dimensions"),
        (write_segmenter, 3, {"resize": 8, "crop": 8, "fit": "crop"}, "image-segmentation", "squash"),
        (write_segmenter, 3, {"resize": 8, "crop": 8, "fit": "squash"}, "image-classification", "dimensions"),
    ],
)
def test_a_model_that_cannot_do_its_task_stops_the_start(
    tmp_path: Path, write: Any, labels: int, steps: dict[str, Any], task: str, named: str
) -> None:
    write(tmp_path / "model", LABELS)
    describe_pictures(tmp_path / "model", LABELS[:labels], **steps)
    with pytest.raises((StartError, UnsuitableModel), match=named):
        load_task(tmp_path / "model", task=task)
