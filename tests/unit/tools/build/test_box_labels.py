"""Right boxes are read as YOLO and COCO lay them out, into the pixels of the model's input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sm.errors import CommandError
from trireme_extensions.convert.graph_runner import Feed
from trireme_tools.build import box_labels, right_answers
from trireme_tools.build.measure import Input, Measure

#: A picture of 200 by 100 lies in the middle of an input of 100 by 100: half its size, 25 pixels further down.
FEED: Feed = {"images": np.zeros((1, 3, 100, 100), np.uint8), "confidence": np.array([[0.5]], np.float32)}
#: The same box, of 40 by 20 pixels, in either form.
YOLO_LINE, COCO_BOX = "1 0.3 0.4 0.2 0.2", [40, 30, 40, 20]
RIGHT = [20, 40, 40, 50, 1, 0]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two pictures, of which the second is upright by its EXIF orientation alone, and the model's classes."""
    folder = tmp_path / "images" / "val"
    folder.mkdir(parents=True)
    Image.new("RGB", (200, 100)).save(folder / "a.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (100, 200)).save(folder / "b.jpg", exif=turned)
    (tmp_path / "labels.txt").write_text("cat\nsports ball\n")
    return folder


def read(folder: Path) -> list[Any]:
    place = right_answers.find_boxes(folder)
    assert place is not None
    named = [("a.jpg", FEED), ("b.jpg", FEED)]
    return [
        boxes.tolist() for boxes in box_labels.read(place, folder, named, folder.parents[1] / "labels.txt")
    ]


def coco(**changed: Any) -> str:
    picture = {"id": 7, "file_name": "val/a.jpg", "width": 200, "height": 100}
    other = {"id": 8, "file_name": "b.jpg", "width": 200, "height": 100}
    row = {"id": 1, "image_id": 7, "category_id": 37, "bbox": COCO_BOX, "area": 800, "iscrowd": 0}
    kinds = [{"id": 37, "name": "sports ball", "supercategory": "sports"}]
    return json.dumps({"images": [picture, other], "categories": kinds, "annotations": [{**row, **changed}]})


def test_without_labels_there_are_none(pictures: Path) -> None:
    assert right_answers.find_boxes(pictures) is None
    assert right_answers.with_low_threshold(pictures, FEED)["confidence"].item() == 0.25


@pytest.mark.parametrize("inside", [True, False])
def test_yolo_s_labels_lie_beside_the_pictures_or_in_place_of_images(pictures: Path, inside: bool) -> None:
    labels = pictures / "labels" if inside else pictures.parents[1] / "labels" / "val"
    labels.mkdir(parents=True)
    # One that is there twice counts once, a polygon is the box around it, and b.jpg has none.
    (labels / "a.txt").write_text(f"{YOLO_LINE}\n{YOLO_LINE}\n\n0 0 0 .5 0 .5 .5\n")
    assert read(pictures) == [[[0, 25, 50, 50, 0, 0], pytest.approx(RIGHT)], []]
    assert right_answers.with_low_threshold(pictures, FEED)["confidence"].item() == pytest.approx(0.001)
    assert right_answers.find_boxes(pictures.parent) == (None if inside else labels.parent)


@pytest.mark.parametrize("name", right_answers.COCO)
def test_coco_s_categories_are_the_model_s_classes_by_their_names(pictures: Path, name: str) -> None:
    (pictures / name).write_text(coco())
    assert read(pictures) == [[pytest.approx(RIGHT)], []]
    (pictures / name).write_text(coco(iscrowd=1, image_id=8))
    assert read(pictures) == [[], [pytest.approx([*RIGHT[:5], 1])]]


@pytest.mark.parametrize(
    "line",
    [
        *("1 0.5", "1 .5 .5 .2", "2 .5 .5 .2 .2", "-1 .5 .5 .2 .2", "0.5 .5 .5 .2 .2", "1 80 30 40 20"),
        *(
            "ball .5 .5 .2 .2",
            "1 nan .5 .2 .2",
            "1 .5 .5 -.2 .2",
            "1,.5,.5,.2,.2",
            "1 .5 .5 .2 \xff",
            "1 .5 .5 .2 .2 .9",
        ),
    ],
)
def test_a_line_of_yolo_s_that_is_wrong_is_named(pictures: Path, line: str) -> None:
    (pictures / "labels").mkdir()
    (pictures / "labels" / "b.txt").write_bytes(f"{YOLO_LINE}\n{line}\n".encode("latin-1"))
    with pytest.raises(CommandError, match=r"b\.txt, line 2"):
        read(pictures)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "COCO's form"),
        ("[]", "COCO's form"),
        ('{"images": [], "categories": []}', "no picture a.jpg of 200 by 100"),
        (coco().replace('"width": 200', '"width": 100'), "no picture a.jpg"),
        (coco(bbox=[1, 2, 3]), r"annotations\.0"),
        (coco(bbox=[1, 2, -3, 4]), r"annotations\.0"),
        (coco(bbox=[1, 2, float("nan"), 4]), r"annotations\.0"),
        (coco(category_id=1), r"annotations\.0"),
        (coco().replace("sports ball", "Ball"), "labels.txt"),
    ],
)
def test_a_file_of_coco_s_that_is_wrong_is_refused(pictures: Path, text: str, said: str) -> None:
    (pictures / "annotations.json").write_text(text)
    with pytest.raises(CommandError, match=said):
        read(pictures)


def test_labels_without_a_box_or_of_what_is_no_picture_are_refused(pictures: Path) -> None:
    (pictures / "labels").mkdir()
    with pytest.raises(CommandError, match="no box"):
        read(pictures)
    with pytest.raises(CommandError, match=r"a\.npz"):
        box_labels.read(pictures / "labels", pictures, [("a.npz", FEED)], pictures / "labels.txt")


def test_the_measure_of_boxes_with_labels_is_their_precision() -> None:
    assert Measure({"y": "boxes"}, "", has_labels=True).name == "mAP@0.5:0.95"
    assert Measure({"y": "labels"}, "", has_labels=True).name == "accuracy"
    assert Input({}, {}).boxes is None
