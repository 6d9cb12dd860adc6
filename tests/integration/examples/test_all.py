"""All examples in a real box: the commands that its start prints, and detect_segment's answers.

detect_segment is an ensemble of three models that share an environment. test_served.py has the other examples.
"""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import requests
from numpy.typing import NDArray
from PIL import Image

from sm.commands.golden import differences
from sm.settings import HERE, Settings
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from trireme_tools.invoke.result_picture import decode_runs
from trireme_tools.prepare import example_repositories

pytestmark = pytest.mark.exhaustive

#: By example: what its command must print.
EXPECTED_OUTPUT = {
    "bert_encode": '"embedding":[',
    "detect_segment": '"label":"cat"',
    "efficientnet_lite": '"label":"espresso"',
    "t5_translate": '"result":"Das"',
}
MODEL = "detect_segment"
SAMPLE = HERE / "examples/detect_segment/repository/code/detect_segment/sample"
COLLAGE = (SAMPLE / "collage.jpg").read_bytes()
GOLDEN = json.loads((SAMPLE / "golden.json").read_bytes())

Mask = NDArray[np.bool_]


@pytest.fixture(scope="module")
def repository() -> Path:
    return example_repositories.prepare(Settings.read({}))


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(arguments="--examples")


def test_all_examples_are_served_and_their_printed_commands_work(box: RunningBox, repository: Path) -> None:
    assert {"resnet", "yolov5", "bert_base", *EXPECTED_OUTPUT} <= {path.name for path in repository.iterdir()}
    curls = re.findall(r"^curl .*", box.wait_for_log("The page to try it"), re.M)
    assert len(curls) == 3 + len(EXPECTED_OUTPUT)
    for name, expected in EXPECTED_OUTPUT.items():
        (curl,) = (each for each in curls if name in each)
        command = ["bash", "-c", curl.replace(f"localhost:{box.port}", f"127.0.0.1:{box.port}")]
        assert expected in subprocess.check_output(command, text=True, timeout=120).replace(" ", "")


@pytest.fixture
def objects_with_masks(box: RunningBox) -> list[dict[str, Any]]:
    """The objects of the collage, with their masks as run lengths."""
    return list(result_of(detect(box, COLLAGE, output="rle")))


def detect(
    box: RunningBox, picture: bytes, accept: str = "application/json", **parameters: str
) -> requests.Response:
    """Send a picture as the raw body, with the parameters in the query."""
    query = {"modelname": MODEL, **parameters}
    return box.send(picture, "image/jpeg", headers={"Accept": accept}, params=query)


def result_of(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


def pixels_of(mask: dict[str, Any]) -> Mask:
    return decode_runs(mask["counts"], *mask["size"])


def intersection_over_union(first: Mask, second: Mask) -> float:
    return float((first & second).sum() / (first | second).sum())


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({}, None),
        ({"classes": "A cat. A dining table."}, ["cat", "dining table"]),
        ({"classes": ["Cup", "person"]}, ["person", "cup"]),
        ({"classes": "bus"}, []),
    ],
)
def test_the_answer_is_the_boxes_of_all_objects_or_of_those_named(
    box: RunningBox, parameters: dict[str, object], labels: list[str] | None
) -> None:
    payload = json.loads((SAMPLE / "payload.json").read_bytes())
    objects = result_of(box.invoke(MODEL, payload, parameters=parameters))
    if labels is None:
        assert list(differences(objects, GOLDEN)) == []
    else:
        assert [row["label"] for row in objects] == labels


def test_an_unknown_class_is_a_422_that_lists_similar_ones(box: RunningBox) -> None:
    response = detect(box, COLLAGE, classes="cat, motorbikes")
    assert response.status_code == 422
    assert (response.json()["field"], response.json()["near"][0]) == ("parameters.classes", "motorcycle")


def test_each_mask_agrees_with_that_of_an_independent_implementation(
    objects_with_masks: list[dict[str, Any]],
) -> None:
    with Image.open(SAMPLE / "masks.png") as picture:
        golden_masks = np.split(np.asarray(picture), len(GOLDEN))
    assert [row["label"] for row in objects_with_masks] == [row["label"] for row in GOLDEN]
    for row, golden_mask in zip(objects_with_masks, golden_masks, strict=True):
        assert intersection_over_union(pixels_of(row["mask"]), golden_mask) > 0.85, row["label"]
        assert row["quality"] > 0.9


def test_a_caller_that_accepts_png_gets_the_objects_drawn(
    box: RunningBox, objects_with_masks: list[dict[str, Any]]
) -> None:
    response = detect(box, COLLAGE, accept="image/png", classes="cat")
    assert response.headers["Content-Type"] == "image/png"
    rendered = np.asarray(Image.open(io.BytesIO(response.content))).astype(int)
    changed_pixels = np.abs(rendered - np.asarray(Image.open(io.BytesIO(COLLAGE)))).sum(axis=2) > 0
    # The tint, the outline around it and the name change pixels.
    assert intersection_over_union(changed_pixels, pixels_of(objects_with_masks[0]["mask"])) > 0.9
    json_result = result_of(detect(box, COLLAGE, output="picture", classes="cat"))
    assert base64.b64decode(json_result["image"]) == response.content


def test_boxes_and_masks_of_a_huge_picture_are_in_its_own_pixels(
    box: RunningBox, objects_with_masks: list[dict[str, Any]]
) -> None:
    pixels = cv2.imdecode(np.frombuffer(COLLAGE, np.uint8), cv2.IMREAD_COLOR)
    huge = bytes(cv2.imencode(".jpg", cv2.resize(pixels, (8000, 4570)))[1])
    (cat,) = result_of(detect(box, huge, output="rle", classes="cat"))
    assert cat["mask"]["size"] == [4570, 8000]
    masks = pixels_of(cat["mask"])[5::10, 5::10], pixels_of(objects_with_masks[0]["mask"])
    assert intersection_over_union(*masks) > 0.95
    assert cat["box"]["x2"] == pytest.approx(10 * GOLDEN[0]["box"]["x2"], abs=80)
