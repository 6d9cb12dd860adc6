"""The article's direct calls of Triton: class_count=3 on port 8001, and Triton's own ports opened."""

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

from tests.integration.reference.article import PICTURES
from tests.integration.reference.usual_ports import PORTS, usual_ports
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port
from tests.support.listening import listening_ports

#: ``value:index:label``: a class as Triton prints it.
ROW = re.compile(r"-?\d+\.\d+:(\d+):(\D.*)")


@pytest.fixture(scope="module")
def box_with_open_ports(boxes: Boxes, demo: Path) -> Iterator[RunningBox]:
    """A box with the demo models whose Triton ports are open on loopback."""
    with (
        usual_ports(),
        boxes.own(demo, TRIREME_TRITON_PORTS="loopback") as box,
    ):
        yield box


def triton_ports(box: RunningBox) -> dict[int, str]:
    """The ports that Triton listens on, each with ``loopback`` or ``all`` for its address."""
    pid = box.pid("--model-repository=")
    address_names = {"0100007F": "loopback", "00000000": "all"}
    return {port: address_names[address[-8:]] for port, address in listening_ports(pid).items()}


@pytest.fixture(scope="module")
def tensor() -> np.ndarray[Any, Any]:
    """The picture as the input of the demo's model: BGR uint8 [1, 3, 224, 224]."""
    picture = Image.open(PICTURES["resnet"]).convert("RGB").resize((224, 224))
    return np.asarray(picture)[:, :, ::-1].transpose(2, 0, 1)[None].copy()


def as_texts(values: Any) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else value for value in np.ravel(values).tolist()]


def assert_classes(rows: list[str]) -> None:
    assert len(rows) == 3
    assert all(ROW.fullmatch(row) for row in rows), rows
    values = [float(row.partition(":")[0]) for row in rows]
    assert values == sorted(values, reverse=True)
    assert any("espresso" in row or "cup" in row or "coffee" in row for row in rows), rows


def classify_over_http(url: str, tensor: np.ndarray[Any, Any], output: str = "logits") -> list[str]:
    with tritonclient.http.InferenceServerClient(url) as client:
        input_ = tritonclient.http.InferInput("input", list(tensor.shape), "UINT8")
        input_.set_data_from_numpy(tensor)
        output_ = tritonclient.http.InferRequestedOutput(output, class_count=3)
        return as_texts(client.infer("resnet", [input_], outputs=[output_]).as_numpy(output))


def test_class_count_gives_value_index_label_over_grpc(
    box_with_open_ports: RunningBox, tensor: np.ndarray[Any, Any]
) -> None:
    with tritonclient.grpc.InferenceServerClient("localhost:8001") as client:
        input_ = tritonclient.grpc.InferInput("input", list(tensor.shape), "UINT8")
        input_.set_data_from_numpy(tensor)
        output = tritonclient.grpc.InferRequestedOutput("logits", class_count=3)
        classes = as_texts(client.infer("resnet", [input_], outputs=[output]).as_numpy("logits"))
    assert_classes(classes)
    assert classes == classify_over_http("localhost:8000", tensor)


@pytest.mark.parametrize("output", ["logits", "probs"])
def test_class_count_gives_value_index_label_over_http(
    box_with_open_ports: RunningBox, tensor: np.ndarray[Any, Any], output: str
) -> None:
    assert_classes(classify_over_http("localhost:8000", tensor, output))


def test_classification_is_a_parameter_of_v2_on_the_boxs_own_port(
    box_with_open_ports: RunningBox, tensor: np.ndarray[Any, Any]
) -> None:
    assert classify_over_http(box_with_open_ports.url.removeprefix("http://"), tensor) == classify_over_http(
        "localhost:8000", tensor
    )
    body = {
        "inputs": [
            {"name": "input", "datatype": "UINT8", "shape": [1, 3, 224, 224], "data": tensor.ravel().tolist()}
        ],
        "outputs": [{"name": "logits", "parameters": {"classification": 3}}],
    }
    for path in ("/v2/models/resnet/infer", "/invocations?modelname=resnet"):
        answer = requests.post(f"{box_with_open_ports.url}{path}", json=body, timeout=60).json()
        (output,) = answer["outputs"]
        assert (output["datatype"], output["shape"]) == ("BYTES", [1, 3])
        assert_classes(output["data"])


def test_the_three_ports_are_open_on_loopback_only(box_with_open_ports: RunningBox) -> None:
    assert triton_ports(box_with_open_ports) == dict.fromkeys(PORTS, "loopback")
    assert requests.get("http://localhost:8000/v2/health/ready", timeout=10).status_code == 200
    assert "nv_inference_request_success" in requests.get("http://localhost:8002/metrics", timeout=10).text
    box_with_open_ports.wait_for_log("HTTP 8000, gRPC 8001")


def test_the_setting_all_opens_the_ports_on_every_address(boxes: Boxes) -> None:
    """The test sets other port numbers, to be independent of the usual ones."""
    ports = {f"SAGEMAKER_TRITON_{name}_PORT": free_port() for name in ("HTTP", "GRPC", "METRICS")}
    settings: dict[str, Any] = {name: str(port) for name, port in ports.items()}
    settings |= {"TRIREME_TRITON_PORTS": "all-with-known-holes"}
    assert triton_ports(boxes(("echo",), **settings)) == dict.fromkeys(ports.values(), "all")
