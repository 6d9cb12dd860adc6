"""The yolov5 client finds what PyTorch finds with the same weights, in every answer format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients.yolov5.client import DetectionPayload
from sm.client import Client, ModelMetadata, Picture, TensorMetadata, Tensors
from sm.client.detection import Objects, detect_objects
from sm.client.images import decode
from sm.client.payloads import RequestContext
from sm.errors import StartError
from sm.settings import HERE, Settings
from tests.support.oriented_pictures import enlarged_jpeg
from tests.support.task_models import in_process, load_built_in
from trireme_tools.build import suppression
from trireme_tools.build.samples import InProcess

Array = NDArray[Any]
SAMPLES = HERE / "clients" / "yolov5" / "sample"
PYTORCH_ANSWERS: dict[str, dict[str, Any]] = json.loads((SAMPLES / "pictures.json").read_text())


load_client = partial(load_built_in, "yolov5")


class PlayedPlan(InProcess):
    """Answers as a TensorRT plan does: rows, or objects by its built-in thresholds. A real plan needs a GPU."""

    def __init__(self, plain_model: InProcess) -> None:
        super().__init__(plain_model.graph, plain_model.runner)
        self.requested_outputs: list[str] = []

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        (name,) = outputs or ()
        self.requested_outputs.append(name)
        rows = super().infer(model, inputs, version=version, outputs=["output0"])["output0"]
        if name == "output0":
            return {name: rows}
        objects = detect_objects(rows[0], suppression.CONFIDENCE, suppression.IOU)
        table = np.column_stack([objects.boxes, objects.scores, objects.classes])
        return {name: np.vstack([table, np.zeros((300 - len(table), 6))]).astype(np.float32)[None]}

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        metadata = super().metadata(model, version)
        outputs = {**metadata.outputs, "objects": TensorMetadata("objects", "FP32", (300, 6))}
        return replace(metadata, outputs=outputs)


@pytest.fixture(scope="module")
def client(repository: Path) -> Client:
    return load_client(in_process(repository / "yolov5" / "1" / "model.onnx"), repository)


@pytest.fixture(scope="module")
def plain_model(repository: Path) -> InProcess:
    """The recipe's graph, which takes float pixels and returns rows, as another team's export may."""
    (graph,) = (Settings.read({}).cache / "models" / "yolov5").glob("*/model.onnx")
    return in_process(graph)


def detection_payload(picture: bytes, **parameters: Any) -> DetectionPayload:
    return DetectionPayload.model_validate({"image": picture, "parameters": parameters})


def detect(client: Client, picture: bytes, **parameters: Any) -> Any:
    return client.inference(detection_payload(picture, **{"format": "detections", **parameters}))


@pytest.mark.parametrize("name", sorted(PYTORCH_ANSWERS))
def test_rows_and_detections_equal_those_of_pytorch(client: Client, name: str) -> None:
    content, golden = (SAMPLES / name).read_bytes(), PYTORCH_ANSWERS[name]
    rows: Any = client.inference(detection_payload(content))
    assert [(row[0], row[6:]) for row in rows] == [(row[0], row[6:]) for row in golden["rows"]]
    for row, expected in zip(rows, golden["rows"], strict=True):
        assert row[1] == pytest.approx(expected[1], abs=0.01)
        assert row[2:6] == pytest.approx(expected[2:6], abs=1)
    for detection, expected in zip(detect(client, content), golden["detections"], strict=True):
        assert detection.keys() == expected.keys()
        assert detection["label"] == expected["label"]
        assert detection["score"] == pytest.approx(expected["score"], abs=0.01)
        assert detection["box"] == pytest.approx(expected["box"], abs=1)


@pytest.mark.parametrize("thresholds", [(0.25, 0.45), (0.05, 0.2)])
def test_every_form_of_the_model_gives_the_same_answer(
    client: Client, plain_model: InProcess, repository: Path, tmp_path: Path, thresholds: tuple[float, float]
) -> None:
    """A plan has its own thresholds; a caller's lower ones are applied to its rows."""
    folder = tmp_path / "yolov5"
    shutil.copytree(repository / "yolov5", folder, ignore=shutil.ignore_patterns("1"))
    suppression.describe(folder)
    plan = PlayedPlan(plain_model)
    content = (SAMPLES / "collage.jpg").read_bytes()
    payload = detection_payload(content, confidence=thresholds[0], iou=thresholds[1])
    answer = client.inference(payload)
    assert load_client(plain_model, repository).inference(payload) == answer
    assert load_client(plan, tmp_path).inference(payload) == answer
    plan_thresholds_apply = thresholds[0] >= suppression.CONFIDENCE and thresholds[1] == suppression.IOU
    assert plan.requested_outputs == ["objects" if plan_thresholds_apply else "output0"]


def test_a_plan_without_its_thresholds_file_stops_the_start(plain_model: InProcess, repository: Path) -> None:
    with pytest.raises(StartError, match=r"suppression\.json"):
        load_client(PlayedPlan(plain_model), repository)


def test_the_sample_payload_is_the_collage_and_its_golden_answer_the_rows() -> None:
    payload = DetectionPayload.model_validate(json.loads((SAMPLES / "payload.json").read_text()))
    assert payload.image == (SAMPLES / "collage.jpg").read_bytes()
    assert json.loads((SAMPLES / "golden.json").read_text()) == PYTORCH_ANSWERS["collage.jpg"]["rows"]


def test_a_photograph_decoded_smaller_has_the_objects_of_the_full_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph = enlarged_jpeg(HERE / "clients" / "resnet" / "sample" / "cat.png")
    (small,) = detect(client, photograph)
    monkeypatch.setattr(DetectionPayload, "pixels_at_least", lambda self, *_: decode(self.image))
    (full,) = detect(client, photograph)
    assert small["label"] == full["label"] == "cat"
    assert small["score"] == pytest.approx(full["score"], abs=0.02)
    assert list(small["box"].values()) == pytest.approx(list(full["box"].values()), abs=0.01 * 4032)


def test_the_caller_chooses_the_thresholds(client: Client) -> None:
    cat = (SAMPLES / "chelsea.jpg").read_bytes()
    assert len(detect(client, cat, confidence=0.3, iou=1.0)) > 1
    found = detect(client, cat, confidence=0.3, iou=0.0)
    assert [row["label"] for row in found].count("cat") == 1
    assert detect(client, cat, confidence=1.0) == []


@pytest.mark.parametrize(
    ("parameters", "accept"), [({"format": "image"}, "application/json"), ({}, "image/png")], ids=str
)
def test_the_caller_may_ask_for_the_picture_with_boxes_drawn(
    client: Client, parameters: dict[str, str], accept: str
) -> None:
    payload = detection_payload((SAMPLES / "collage.jpg").read_bytes(), **parameters)
    payload.attach_request(RequestContext(accept=accept))
    drawn = client.inference(payload)
    assert isinstance(drawn, Picture)
    changed = (drawn.pixels != payload.pixels).any(axis=2)
    assert 0.005 < changed.mean() < 0.2
    box = PYTORCH_ANSWERS["collage.jpg"]["detections"][0]["box"]
    assert changed[100:400, round(box["x1"])].all()


def test_rows_have_every_digit_and_may_reach_beyond_the_input(client: Any) -> None:
    boxes = np.array([[-7.25, 111.92530059814453, 640.5, 641.125]], np.float32)
    objects = Objects(boxes, np.array([0.9168673157691956], np.float32), np.array([15]))
    rows = client.to_rows(objects, client.letterbox.fit(30, 20))
    assert rows == [[15, 0.9168673157691956, -7.25, 640.5, 111.92530059814453, 641.125, 30, 20]]


def test_a_class_without_a_label_is_answered_as_its_number(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(client.labels) == 80
    monkeypatch.setattr(client, "labels", client.labels[:1])
    found = detect(client, (SAMPLES / "collage.jpg").read_bytes())
    assert [detection["label"] for detection in found] == ["person", "41", "15", "60"]
