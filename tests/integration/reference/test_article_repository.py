"""The article's model repository is served by the box's own clients, and on Triton's own ports.

TensorRT is missing here: python models on ONNX Runtime with the same names, types and shapes stand in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from PIL import Image

from tests.integration.reference import article
from tests.integration.reference.article import PICTURES, golden_answer, payload
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_ports, listening_ports

#: Triton's ports for HTTP, gRPC and metrics. The unit tests hold that they are 8000 to 8002 if none are set.
HTTP, GRPC, METRICS = PORTS = free_ports(3)
PORT_VARIABLES = [f"SAGEMAKER_TRITON_{name}_PORT" for name in ("HTTP", "GRPC", "METRICS")]


@pytest.fixture(scope="module")
def box(boxes: Boxes, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with the article's repository whose Triton ports are open on loopback."""
    repository = article.write_repository(tmp_path_factory.mktemp("article") / "model", demo)
    variables: dict[str, Any] = dict(zip(PORT_VARIABLES, map(str, PORTS), strict=True))
    with boxes.own(repository, TRIREME_TRITON_PORTS="loopback", **variables) as box:
        yield box


def result_of(box: RunningBox, model: str, payload: object, **options: Any) -> Any:
    response = box.invoke(model, payload, **options)
    assert response.status_code == 200, response.text
    return response.json()["result"]


@pytest.fixture(scope="module")
def tensor() -> np.ndarray[Any, Any]:
    """The picture as the article's code makes it: resized by Pillow, divided by 255."""
    squashed = Image.open(PICTURES["resnet"]).convert("RGB").resize((224, 224))
    return (np.asarray(squashed).transpose(2, 0, 1).astype(np.float32) / 255)[None]


def classify(client: Any, library: Any, tensor: np.ndarray[Any, Any]) -> list[str]:
    """Ask for ``class_count=3`` as the article's client does: rows of ``value:index:label``."""
    input_ = library.InferInput("input", list(tensor.shape), "FP32")
    input_.set_data_from_numpy(tensor)
    output = library.InferRequestedOutput("output", class_count=3)
    values = client.infer("resnet", [input_], outputs=[output]).as_numpy("output")
    return [value.decode() if isinstance(value, bytes) else value for value in np.ravel(values).tolist()]


def test_class_count_gives_value_index_label_on_every_port(
    box: RunningBox, tensor: np.ndarray[Any, Any]
) -> None:
    with tritonclient.grpc.InferenceServerClient(f"localhost:{GRPC}") as client:
        rows = classify(client, tritonclient.grpc, tensor)
    assert len(rows) == 3
    # The labels are numbered, as the article's are.
    assert all(re.fullmatch(r"-?\d+\.\d+:(\d+):\1:\D.*", row) for row in rows), rows
    for url in (f"localhost:{HTTP}", box.url.removeprefix("http://")):
        with tritonclient.http.InferenceServerClient(url) as client:
            assert classify(client, tritonclient.http, tensor) == rows
    data = {"name": "input", "datatype": "FP32", "shape": tensor.shape, "data": tensor.ravel().tolist()}
    body = {"inputs": [data], "outputs": [{"name": "output", "parameters": {"classification": 3}}]}
    for path in ("/v2/models/resnet/infer", "/invocations?modelname=resnet"):
        (output,) = requests.post(f"{box.url}{path}", json=body, timeout=60).json()["outputs"]
        assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [3], rows)
    # The box's own client gives the same.
    for own, row in zip(result_of(box, "resnet", payload("resnet")), rows, strict=True):
        (own_score, own_label), (score, label) = own.split(":", 1), row.split(":", 1)
        assert own_label == label
        assert float(own_score) == pytest.approx(float(score), abs=1e-3)


def test_the_three_ports_are_open_on_loopback_only(box: RunningBox) -> None:
    ports = listening_ports(box.pid("--model-repository="))
    assert {port: address[-8:] for port, address in ports.items()} == dict.fromkeys(PORTS, "0100007F")
    assert requests.get(f"http://localhost:{HTTP}/v2/health/ready", timeout=10).status_code == 200


def test_yolov5_in_a_model_of_another_name_detects_what_the_demo_detects(box: RunningBox) -> None:
    """The letterbox bars are grey 128, as in the reference, instead of 114, so scores differ a little."""
    detections, demo_detections = result_of(box, "yolov5", payload("yolov5")), golden_answer("yolov5")
    assert [row[0] for row in detections] == [row[0] for row in demo_detections]
    for row, expected in zip(detections, demo_detections, strict=True):
        assert row[1] == pytest.approx(expected[1], abs=0.05)
        assert row[2:6] == pytest.approx(expected[2:6], abs=8)
        assert row[6:] == expected[6:]
    labelled = result_of(box, "yolov5", payload("yolov5"), parameters={"format": "detections"})
    assert [row["label"].isdigit() for row in labelled] == [False] * len(detections)


def test_bert_base_gives_the_demos_tokens_and_scores(box: RunningBox) -> None:
    result, demo_result = result_of(box, "bert_base", payload("bert_base")), golden_answer("bert_base")
    assert [row["token"] for row in result] == [row["token"] for row in demo_result]
    assert [row["score"] for row in result] == pytest.approx([row["score"] for row in demo_result], abs=1e-3)
