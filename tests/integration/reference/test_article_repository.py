"""The article's model repository: its folders, tensors and files, served by the box's own clients.

TensorRT is not here: python models on ONNX Runtime with exactly its names, types and shapes stand in.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from tests.support.boxes import RunningBox, running_box
from tests.support.reference.article import JSON, PICTURES, picture, request, runtime
from tests.support.reference.repositories import write_bert, write_ensemble, write_resnet, write_yolov5


@pytest.fixture(scope="module")
def repository(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("article") / "model"
    write_resnet(folder / "resnet", demo / "resnet" / "labels.txt")
    write_yolov5(folder / "yolov5s")
    write_bert(folder / "bert_base")
    return folder


@pytest.fixture(scope="module")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with running_box(tmp_path_factory.mktemp("box"), repository, clients=()) as started:
        yield started


def rows(box: RunningBox, model: str, payload: object) -> Any:
    response = box.invoke(model, payload)
    assert response.status_code == 200, response.text
    return response.json()["result"]


@pytest.mark.parametrize("model", ["resnet", "yolov5", "bert_base"])
def test_the_notebooks_requests_are_answered(box: RunningBox, model: str) -> None:
    answer = runtime(box.url).invoke_endpoint(
        EndpointName="MyTritonEndpoint", ContentType=JSON, Body=request(model), Accept=JSON
    )
    result = json.loads(answer["Body"].read())["result"]
    assert len(result) == {"resnet": 3, "bert_base": 5}.get(model, len(result))
    assert result


def test_resnet_gives_what_the_articles_own_code_gives(box: RunningBox) -> None:
    """Its preprocessing (Pillow, the whole picture squashed, by 255) and Triton's classification."""
    image = Image.open(PICTURES["resnet"]).convert("RGB").resize((224, 224))
    tensor = (np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255)[None]
    body = {
        "inputs": [
            {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": tensor.ravel().tolist()}
        ],
        "outputs": [{"name": "output", "parameters": {"classification": 3}}],
    }
    (output,) = requests.post(f"{box.url}/v2/models/resnet/infer", json=body, timeout=60).json()["outputs"]
    found = rows(box, "resnet", {"img": picture("resnet")})
    assert all(re.fullmatch(r"-?\d+\.\d{6}:(\d+):\1:[^:]+", row) for row in found)
    assert [row.split(":")[1:] for row in found] == [row.split(":")[1:] for row in output["data"]]
    for row, theirs in zip(found, output["data"], strict=True):
        assert float(row.split(":")[0]) == pytest.approx(float(theirs.split(":")[0]), abs=1e-3)


def test_yolov5_finds_in_the_model_of_another_name_what_the_demo_finds(
    box: RunningBox, demo_box: RunningBox
) -> None:
    """The bars are the reference's grey, 128 in the place of 114, so scores differ a little."""
    found = rows(box, "yolov5", {"img": picture("yolov5")})
    known = rows(demo_box, "yolov5", {"img": picture("yolov5")})
    assert [row[0] for row in found] == [row[0] for row in known]
    for row, theirs in zip(found, known, strict=True):
        assert row[1] == pytest.approx(theirs[1], abs=0.05)
        assert row[2:6] == pytest.approx(theirs[2:6], abs=8)
        assert row[6:] == theirs[6:]
    labels = rows(box, "yolov5", {"img": picture("yolov5")})
    named = box.invoke("yolov5", {"img": picture("yolov5")}, parameters={"format": "detections"})
    assert len(named.json()["result"]) == len(labels)
    assert all(isinstance(row["label"], str) and not row["label"].isdigit() for row in named.json()["result"])


def test_bert_base_has_the_words_of_bert_base_uncased(box: RunningBox, demo_box: RunningBox) -> None:
    text = {"text": "The world has [MASK] people."}
    found, known = rows(box, "bert_base", text), rows(demo_box, "bert_base", text)
    assert [row["token"] for row in found] == [row["token"] for row in known]
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in known], abs=1e-3)


@pytest.mark.parametrize("model", ["resnet", "yolov5"])
def test_a_list_is_answered_though_the_plans_batch_is_one(box: RunningBox, model: str) -> None:
    one = rows(box, model, {"img": picture(model)})
    assert rows(box, model, [{"img": picture(model)}] * 3) == [one] * 3


def test_two_callers_at_once_get_each_their_own(box: RunningBox) -> None:
    red = io.BytesIO()
    Image.new("RGB", (300, 200), "red").save(red, "JPEG")
    pictures = [picture("resnet"), base64.b64encode(red.getvalue()).decode()]
    alone = [rows(box, "resnet", each) for each in pictures]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda each: rows(box, "resnet", each), pictures * 4)) == alone * 4


def test_models_names_the_client_of_each(box: RunningBox) -> None:
    listed = requests.get(f"{box.url}/models", timeout=10).json()["models"]
    assert {row["modelName"]: row["client"] for row in listed if row["client"]} == {
        "resnet": "Resnet",
        "yolov5": "Yolov5",
        "bert_base": "BertBase",
    }


def test_a_config_names_its_client_and_other_models_are_left_to_v2(
    demo: Path, tmp_path: Path, box: RunningBox
) -> None:
    """A model called otherwise, an ensemble around it, a batch of four, and a ResNet that is none."""
    folder = tmp_path / "model"
    names = 'parameters { key: "trireme_client" value { string_value: "yolov5" } }'
    write_yolov5(folder / "detector")
    write_ensemble(folder / "all_of_it", "detector", {"images": (1, 3, 640, 640)}, {"output": (1, 25200, 85)})
    config = folder / "all_of_it" / "config.pbtxt"
    config.write_text(config.read_text() + names)
    write_resnet(folder / "four", demo / "resnet" / "labels.txt", batch=4)
    config = folder / "four" / "config.pbtxt"
    config.write_text(config.read_text() + names.replace("yolov5", "resnet"))
    write_yolov5(folder / "bert_base")
    with running_box(tmp_path, folder, clients=()) as other:
        assert rows(other, "yolov5", {"img": picture("yolov5")}) == rows(
            box, "yolov5", {"img": picture("yolov5")}
        )
        assert rows(other, "resnet", {"img": picture("resnet")}) == rows(
            box, "resnet", {"img": picture("resnet")}
        )
        refused = other.invoke("bert_base", {"text": "[MASK]"})
        assert refused.status_code == 404
        assert "'bert_base' takes images FP32 [1, 3, 640, 640]" in refused.json()["error"]
        assert "The model is served without it" in other.log.read_text()
        metadata = requests.get(f"{other.url}/v2/models/bert_base", timeout=10).json()
        assert metadata["inputs"][0]["name"] == "images"
