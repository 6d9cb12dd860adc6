"""The article's model repository is served by the box's own clients.

TensorRT is missing here: python models on ONNX Runtime with the same names, types and shapes stand in.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from sm.settings import HERE
from tests.integration.reference.article import PICTURES, payload, picture
from tests.integration.reference.article_repositories import (
    write_bert,
    write_ensemble,
    write_resnet,
    write_yolov5,
)
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox


@pytest.fixture(scope="module")
def repository(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("article") / "model"
    write_resnet(folder / "resnet", demo / "resnet" / "labels.txt")
    write_yolov5(folder / "yolov5s")
    write_bert(folder / "bert_base")
    return folder


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(repository)


def result_of(box: RunningBox, model: str, payload: object) -> Any:
    response = box.invoke(model, payload)
    assert response.status_code == 200, response.text
    return response.json()["result"]


def test_resnet_gives_the_result_of_the_articles_own_code(box: RunningBox) -> None:
    """The article resizes the whole picture with Pillow, divides by 255 and uses Triton's classification."""
    squashed = Image.open(PICTURES["resnet"]).convert("RGB").resize((224, 224))
    tensor = (np.asarray(squashed).transpose(2, 0, 1).astype(np.float32) / 255)[None]
    body = {
        "inputs": [
            {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": tensor.ravel().tolist()}
        ],
        "outputs": [{"name": "output", "parameters": {"classification": 3}}],
    }
    (output,) = requests.post(f"{box.url}/v2/models/resnet/infer", json=body, timeout=60).json()["outputs"]
    rows = result_of(box, "resnet", {"img": picture("resnet")})
    assert all(re.fullmatch(r"-?\d+\.\d{6}:(\d+):\1:[^:]+", row) for row in rows)
    assert [row.split(":")[1:] for row in rows] == [row.split(":")[1:] for row in output["data"]]
    for row, expected in zip(rows, output["data"], strict=True):
        assert float(row.split(":")[0]) == pytest.approx(float(expected.split(":")[0]), abs=1e-3)


def golden_answer(model: str) -> Any:
    """What the demo answers to the article's request."""
    return json.loads((HERE / "clients" / model / "sample" / "golden.json").read_text())


def test_yolov5_in_a_model_of_another_name_detects_what_the_demo_detects(box: RunningBox) -> None:
    """The letterbox bars are grey 128, as in the reference, instead of 114, so scores differ a little."""
    detections = result_of(box, "yolov5", {"img": picture("yolov5")})
    demo_detections = golden_answer("yolov5")
    assert [row[0] for row in detections] == [row[0] for row in demo_detections]
    for row, expected in zip(detections, demo_detections, strict=True):
        assert row[1] == pytest.approx(expected[1], abs=0.05)
        assert row[2:6] == pytest.approx(expected[2:6], abs=8)
        assert row[6:] == expected[6:]
    labelled = box.invoke("yolov5", {"img": picture("yolov5")}, parameters={"format": "detections"})
    assert len(labelled.json()["result"]) == len(detections)
    assert all(
        isinstance(row["label"], str) and not row["label"].isdigit() for row in labelled.json()["result"]
    )


def test_bert_base_gives_the_demos_tokens_and_scores(box: RunningBox) -> None:
    result, demo_result = result_of(box, "bert_base", payload("bert_base")), golden_answer("bert_base")
    assert [row["token"] for row in result] == [row["token"] for row in demo_result]
    assert [row["score"] for row in result] == pytest.approx([row["score"] for row in demo_result], abs=1e-3)


@pytest.mark.parametrize("model", ["resnet", "yolov5"])
def test_a_list_is_answered_by_models_with_a_batch_of_one(box: RunningBox, model: str) -> None:
    single_result = result_of(box, model, {"img": picture(model)})
    assert result_of(box, model, [{"img": picture(model)}] * 3) == [single_result] * 3


@pytest.mark.exhaustive
def test_a_configuration_can_name_its_client_and_an_unfit_model_is_served_without(
    boxes: Boxes, demo: Path, tmp_path: Path, box: RunningBox
) -> None:
    """An ensemble around a renamed YOLO, a ResNet with a batch of four, and a ``bert_base`` that is not a BERT."""
    folder = tmp_path / "model"
    client_parameter = 'parameters { key: "trireme_client" value { string_value: "yolov5" } }'
    write_yolov5(folder / "detector")
    write_ensemble(folder / "all_of_it", "detector", {"images": (1, 3, 640, 640)}, {"output": (1, 25200, 85)})
    config = folder / "all_of_it" / "config.pbtxt"
    config.write_text(config.read_text() + client_parameter)
    write_resnet(folder / "four", demo / "resnet" / "labels.txt", batch=4)
    config = folder / "four" / "config.pbtxt"
    config.write_text(config.read_text() + client_parameter.replace("yolov5", "resnet"))
    write_yolov5(folder / "bert_base")
    with boxes.own(folder) as other_box:
        for model in ("yolov5", "resnet"):
            asked = {"img": picture(model)}
            assert result_of(other_box, model, asked) == result_of(box, model, asked)
        response = other_box.invoke("bert_base", {"text": "[MASK]"})
        assert response.status_code == 404
        assert "images FP32 [1, 3, 640, 640]" in response.json()["error"]
        metadata = requests.get(f"{other_box.url}/v2/models/bert_base", timeout=10).json()
        assert metadata["inputs"][0]["name"] == "images"
