"""An export of Ultralytics says in its metadata how its rows are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from sm.errors import ClientFailed, CommandError
from tests.support.hostile_pictures import encode
from tests.support.task_models import ask, load_task, write_constants
from trireme_extensions.tasks.checkpoint.detectors import detector
from trireme_extensions.tasks.hugging_face import read_folder

NAMES = ("ship", "plane", "car")
#: The rows of two objects for an input of 64 by 64, as each export gives them.
CENTRES = np.array([[32, 32, 16, 32], [16, 48, 16, 16]], np.float32)
SCORES = np.array([[0.1, 0.2, 0.91], [0.83, 0.1, 0.1]], np.float32)
CORNERS = np.hstack([CENTRES[:, :2] - CENTRES[:, 2:] / 2, CENTRES[:, :2] + CENTRES[:, 2:] / 2])
FINAL = np.array([[0.91, 2], [0.83, 0]], np.float32)
KEYPOINTS = np.full((2, 51), 30, np.float32)


def padded(rows: Any, count: int = 300) -> Any:
    return np.vstack([rows, np.zeros((count - len(rows), rows.shape[1]), np.float32)]).astype(np.float32)


def places(rows: Any) -> Any:
    """Return the rows of an input of 64 by 64 pixels, turned as YOLOv8's."""
    return padded(rows, 64 + 16 + 4).T


def export(folder: Path, rows: Any, names: tuple[str, ...] = NAMES, **said: Any) -> Path:
    """Write a folder with a detector of these rows that says this of itself."""
    write_constants(folder, "images", {"output0": np.ascontiguousarray(rows)})
    graph = onnx.load(folder / "model.onnx")
    graph.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 64
    graph.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 64
    properties = {"description": "Ultralytics model", "imgsz": "[64, 64]", **said}
    properties["names"] = str(dict(enumerate(names)))
    onnx.helper.set_model_props(graph, {name: str(value) for name, value in properties.items()})
    onnx.save(graph, folder / "model.onnx")
    return folder


EXPORTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a YOLOv8": (
        places(np.hstack([CENTRES, SCORES])),
        {"task": "detect", "head": "Detect", "end2end": False, "args": {"nms": False}},
        {"head": "v8"},
    ),
    "before 8.4": (places(np.hstack([CENTRES, SCORES])), {"task": "detect"}, {"head": "v8"}),
    "key points": (
        places(np.hstack([CENTRES, SCORES, KEYPOINTS])),
        {"task": "pose", "kpt_shape": [17, 3]},
        {"head": "v8", "extra": 51},
    ),
    "without suppression": (
        padded(np.hstack([CORNERS, FINAL])),
        {"task": "detect", "head": "Detect", "end2end": True},
        {"head": "nms"},
    ),
    "suppressed in the graph": (
        padded(np.hstack([CORNERS, FINAL])),
        {"task": "detect", "end2end": False, "args": {"nms": True}},
        {"head": "nms"},
    ),
    "key points without suppression": (
        padded(np.hstack([CORNERS, FINAL, KEYPOINTS])),
        {"task": "pose", "end2end": True, "kpt_shape": [17, 3]},
        {"head": "nms", "extra": 51},
    ),
    "RT-DETR": (
        padded(np.hstack([CENTRES / 64, FINAL])),
        {"task": "detect", "head": "RTDETRDecoder", "end2end": False},
        {"head": "rtdetr"},
    ),
    "RT-DETR before 8.4": (
        padded(np.hstack([CENTRES / 64, SCORES])),
        {"task": "detect", "description": "Ultralytics rtdetr-l model"},
        {"head": "rtdetr_classes"},
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_what_a_graph_says_of_itself_counts_before_its_shape(tmp_path: Path, name: str) -> None:
    rows, said, options = EXPORTS[name]
    folder = export(tmp_path / "boxes", rows, **said)
    source = read_folder(folder, "object-detection", preprocess=True)
    assert json.loads(source.files["task.json"]) == {"task": "object-detection", **options}
    assert source.files["labels.txt"] == "".join(f"{name}\n" for name in NAMES)
    source.write_files(folder)
    picture = encode(Image.new("RGB", (64, 64)), "PNG")
    answer = ask(load_task(folder, task="object-detection", **options), image=picture)
    assert [(row["label"], row["score"], [*row["box"].values()]) for row in answer] == [
        ("car", 0.91, [24, 16, 40, 48]),
        ("ship", 0.83, [8, 40, 24, 56]),
    ]


@pytest.mark.parametrize("name", ["RT-DETR", "RT-DETR before 8.4"])
def test_a_picture_is_stretched_for_boxes_as_shares(tmp_path: Path, name: str) -> None:
    rows, said, options = EXPORTS[name]
    folder = export(tmp_path / "boxes", rows, **said)
    client: Any = load_task(folder, task="object-detection", **options)
    wide = encode(Image.new("RGB", (256, 64), "white"), "PNG")
    (tensor,) = client.preprocess(client.payload.model_validate({"image": wide})).values()
    assert tensor.min() == tensor.max() == 1, "there are no bars"
    assert [*ask(client, image=wide)[0]["box"].values()] == [96, 16, 160, 48]


def test_the_bars_around_a_picture_have_the_grey_of_ultralytics(tmp_path: Path) -> None:
    rows, said, options = EXPORTS["a YOLOv8"]
    folder = export(tmp_path / "boxes", rows, **said)
    read_folder(folder, "object-detection").write_files(folder)
    client: Any = load_task(folder, task="object-detection", **options)
    wide = encode(Image.new("RGB", (64, 32), "white"), "PNG")
    (tensor,) = client.preprocess(client.payload.model_validate({"image": wide})).values()
    assert tensor.shape == (3, 64, 64)
    assert {*(tensor * 255).round().ravel()} == {114, 255}


@pytest.mark.parametrize("task", ["obb", "classify", "semantic", "depth"])
def test_a_graph_without_upright_boxes_is_refused(tmp_path: Path, task: str) -> None:
    folder = export(tmp_path / "boxes", padded(np.zeros((1, 7), np.float32)), task=task)
    with pytest.raises(CommandError, match=task):
        read_folder(folder, "object-detection", preprocess=True)


def test_a_graph_of_another_tool_says_nothing(tmp_path: Path) -> None:
    write_constants(tmp_path / "boxes", "images", {"output0": np.zeros((12, 8), np.float32)})
    assert detector(tmp_path / "boxes" / "model.onnx") == ({}, "", {})
    folder = export(tmp_path / "yolov5", np.zeros((252, 8), np.float32), stride=32)
    assert detector(folder / "model.onnx") == ({}, "".join(f"{name}\n" for name in NAMES), {})


@pytest.mark.parametrize(
    ("rows", "head"),
    [
        (places(np.hstack([CENTRES, SCORES + 1])), "v8"),
        (places(np.hstack([CENTRES / 64, SCORES])), "v8"),
        (padded(np.hstack([CENTRES / 64, FINAL])), "nms"),
        (padded(np.hstack([CORNERS, FINAL[:, ::-1]])), "nms"),
        (padded(np.hstack([CORNERS, FINAL])), "rtdetr"),
    ],
)
def test_rows_that_cannot_be_of_the_head_are_an_error_and_no_answer(
    tmp_path: Path, rows: Any, head: str
) -> None:
    folder = export(tmp_path / "boxes", rows)
    (folder / "labels.txt").write_text("\n".join(NAMES))
    client = load_task(folder, task="object-detection", head=head)
    with pytest.raises(ClientFailed, match=r"task\.json"):
        ask(client, image=encode(Image.new("RGB", (64, 64)), "PNG"))
