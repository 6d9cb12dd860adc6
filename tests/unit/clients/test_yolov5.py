"""The yolov5 client finds what PyTorch finds with the same weights, and answers in every form."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from clients.yolov5.client import DetectionPayload
from clients.yolov5.nms import detect_objects
from sm.client import Client, ModelMetadata, Picture, TensorMetadata, Tensors
from sm.errors import StartError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.settings import HERE, Settings
from sm.tools.build import suppression
from sm.tools.build.graph_runner import session
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.prepare import prepare
from sm.tools.build.samples import InProcess

Array = NDArray[Any]
FOLDER = HERE / "clients" / "yolov5"
SAMPLES = FOLDER / "sample"
ANSWERS: dict[str, dict[str, Any]] = json.loads((SAMPLES / "pictures.json").read_text())


def in_process(graph: Path) -> InProcess:
    """Without Triton; tests/integration/box asks the same of the whole box."""
    return InProcess(Graph.read(graph), session(graph))


def loaded(triton: InProcess, repository: Path) -> Client:
    found = ClientSource("yolov5", FOLDER / "client.py")
    made = load(found, triton, repository)
    check(made, found, triton)
    return made


class AsAPlan(InProcess):
    """What a TensorRT plan gives: rows, and objects by the thresholds that are in it. No plan: no GPU is here."""

    def __init__(self, plain: InProcess) -> None:
        super().__init__(plain.graph, plain.runner)
        self.asked: list[str] = []

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        (name,) = outputs or ()
        self.asked.append(name)
        rows = super().infer(model, inputs, version=version, outputs=["output0"])["output0"]
        if name == "output0":
            return {name: rows}
        found = detect_objects(rows[0], suppression.CONFIDENCE, suppression.IOU)
        table = np.column_stack([found.boxes, found.scores, found.classes])
        return {name: np.vstack([table, np.zeros((300 - len(table), 6))]).astype(np.float32)[None]}

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        plain = super().metadata(model, version)
        both = {**plain.outputs, "objects": TensorMetadata("objects", "FP32", (300, 6))}
        return replace(plain, outputs=both)


@pytest.fixture(scope="module")
def repository() -> Path:
    """The real weights, built as ``sm prepare`` builds them."""
    return prepare(Settings.read({}))


@pytest.fixture(scope="module")
def client(repository: Path) -> Client:
    return loaded(in_process(repository / "yolov5" / "1" / "model.onnx"), repository)


@pytest.fixture(scope="module")
def plain(repository: Path) -> InProcess:
    """The recipe's own graph, which takes numbers and gives rows, as a team's may."""
    (graph,) = (Settings.read({}).cache / "models" / "yolov5").glob("*/model.onnx")
    return in_process(graph)


def detection_payload(picture: bytes, **parameters: Any) -> DetectionPayload:
    return DetectionPayload.model_validate({"image": picture, "parameters": parameters})


def encoded(pixels: Array, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG" if mode == "CMYK" else "PNG")
    return file.getvalue()


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_rows_are_those_of_pytorch(client: Client, name: str) -> None:
    found: Any = client.inference(detection_payload((SAMPLES / name).read_bytes()))
    golden = ANSWERS[name]["rows"]
    assert [row[0] for row in found] == [row[0] for row in golden]
    assert [row[6:] for row in found] == [row[6:] for row in golden]
    for row, expected in zip(found, golden, strict=True):
        assert row[1] == pytest.approx(expected[1], abs=0.01)
        assert row[2:6] == pytest.approx(expected[2:6], abs=1)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_detections_are_those_of_pytorch_in_the_pictures_pixels(client: Client, name: str) -> None:
    found: Any = client.inference(detection_payload((SAMPLES / name).read_bytes(), format="detections"))
    golden = ANSWERS[name]["detections"]
    assert [one["label"] for one in found] == [one["label"] for one in golden]
    for one, expected in zip(found, golden, strict=True):
        assert one.keys() == expected.keys()
        assert one["score"] == pytest.approx(expected["score"], abs=0.01)
        assert one["box"] == pytest.approx(expected["box"], abs=1)


@pytest.mark.parametrize("thresholds", [(0.5, 0.45), (0.25, 0.45), (0.05, 0.2), (0.4, 0.9), (0.001, 0.45)])
def test_every_form_of_the_model_gives_the_same_answer(
    client: Client, plain: InProcess, repository: Path, tmp_path: Path, thresholds: tuple[float, float]
) -> None:
    asked_for = dict(zip(("confidence", "iou"), thresholds, strict=True))
    folder = tmp_path / "yolov5"
    shutil.copytree(repository / "yolov5", folder, ignore=shutil.ignore_patterns("1"))
    suppression.describe(folder)
    plan = AsAPlan(plain)
    others = [loaded(plain, repository), loaded(plan, tmp_path)]
    for name in ANSWERS:
        payload = detection_payload((SAMPLES / name).read_bytes(), **asked_for)
        answer = client.inference(payload)
        assert answer == others[0].inference(payload) == others[1].inference(payload)
    fits = thresholds[0] >= suppression.CONFIDENCE and thresholds[1] == suppression.IOU
    assert plan.asked == ["objects" if fits else "output0"] * len(ANSWERS)


def test_a_plan_whose_thresholds_are_lost_stops_the_start(plain: InProcess, repository: Path) -> None:
    with pytest.raises(StartError, match=r"suppression\.json, the thresholds in the plan, cannot be read"):
        loaded(AsAPlan(plain), repository)


def test_the_samples_payload_is_the_collage_and_its_answer_the_rows() -> None:
    payload = DetectionPayload.model_validate(json.loads((SAMPLES / "payload.json").read_text()))
    assert payload.image == (SAMPLES / "collage.jpg").read_bytes()
    assert json.loads((SAMPLES / "golden.json").read_text()) == ANSWERS["collage.jpg"]["rows"]


def test_a_street_has_a_bus_and_three_people(client: Client, repository: Path) -> None:
    street = Settings.read({}).cache / "pictures" / "bus.jpg"
    if not street.exists():
        pytest.skip("the street picture is not in the cache: its licence lets us fetch it, not ship it")
    found: Any = client.inference(detection_payload(street.read_bytes(), format="detections"))
    labels = [one["label"] for one in found]
    assert labels.count("bus") == 1
    assert labels.count("person") >= 3
    assert next(one["score"] for one in found if one["label"] == "bus") > 0.7


def test_best_come_first(client: Client) -> None:
    rows: Any = client.inference(detection_payload((SAMPLES / "collage.jpg").read_bytes(), confidence=0.1))
    scores = [row[1] for row in rows]
    assert len(scores) > len(ANSWERS["collage.jpg"]["rows"])
    assert scores == sorted(scores, reverse=True)


def test_the_thresholds_are_the_callers(client: Client) -> None:
    cat = (SAMPLES / "chelsea.jpg").read_bytes()
    many: Any = client.inference(detection_payload(cat, confidence=0.3, iou=1.0))
    one: Any = client.inference(detection_payload(cat, confidence=0.3, iou=0.0))
    none: Any = client.inference(detection_payload(cat, confidence=1.0))
    assert len(many) > len([row for row in one if row[0] == 15]) == 1
    assert none == []


@pytest.mark.parametrize(
    ("parameters", "accept"), [({"format": "image"}, "application/json"), ({}, "image/png")]
)
def test_the_picture_comes_back_with_its_boxes(
    client: Client, parameters: dict[str, str], accept: str
) -> None:
    payload = detection_payload((SAMPLES / "collage.jpg").read_bytes(), **parameters)
    payload.attach_request("", accept, {})
    drawn = client.inference(payload)
    assert isinstance(drawn, Picture)
    assert drawn.pixels.shape == payload.pixels.shape
    changed = (drawn.pixels != payload.pixels).any(axis=2)
    assert 0.005 < changed.mean() < 0.2
    box = ANSWERS["collage.jpg"]["detections"][0]["box"]
    assert changed[100:400, round(box["x1"])].all()


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 4000), (4000, 1), (640, 640)])
@pytest.mark.parametrize("form", ["rows", "detections", "image"])
def test_pictures_of_any_shape_are_answered(client: Client, width: int, height: int, form: str) -> None:
    picture = encoded(np.full((height, width, 3), 90, np.uint8))
    found: Any = client.inference(detection_payload(picture, format=form, confidence=0.0))
    if form == "image":
        assert found.pixels.shape == (height, width, 3)
    elif form == "rows":
        assert all(min(row[2:6]) >= 0 and max(row[2:6]) <= 640 for row in found)
    else:
        boxes = [one["box"] for one in found]
        assert all(0 <= box["x1"] <= box["x2"] <= width for box in boxes)
        assert all(0 <= box["y1"] <= box["y2"] <= height for box in boxes)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK"])
def test_the_cat_is_found_in_other_kinds_of_pictures(client: Client, mode: str) -> None:
    pixels = np.asarray(Image.open(SAMPLES / "chelsea.jpg"))
    found: Any = client.inference(
        detection_payload(encoded(pixels, mode), confidence=0.2, format="detections")
    )
    assert found[0]["label"] == "cat"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("confidence", float("nan")),
        ("confidence", -0.1),
        ("confidence", 1.1),
        ("confidence", "high"),
        ("iou", float("inf")),
        ("iou", None),
        ("format", "pdf"),
        ("colour", "red"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        detection_payload(b"x", **{name: value})
    assert [error["loc"] for error in refused.value.errors()] == [("parameters", name)]


def test_a_model_with_too_few_labels_gives_numbers(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "yolov5"
    folder.mkdir()
    (folder / "preprocess.json").write_bytes((repository / "yolov5" / "preprocess.json").read_bytes())
    (folder / "labels.txt").write_text("person\n")
    triton = in_process(repository / "yolov5" / "1" / "model.onnx")
    client = load(ClientSource("yolov5", FOLDER / "client.py"), triton, tmp_path)
    client.setup()
    found: Any = client.inference(
        detection_payload((SAMPLES / "collage.jpg").read_bytes(), format="detections")
    )
    assert [one["label"] for one in found] == ["person", "41", "15", "60"]


def test_the_labels_are_cocos(repository: Path) -> None:
    labels = (repository / "yolov5" / "labels.txt").read_text().splitlines()
    assert (len(labels), labels[0], labels[15], labels[-1]) == (80, "person", "cat", "toothbrush")
