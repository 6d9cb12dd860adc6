"""The reference gateway's requests, sent unchanged to ours, with a real Triton and moto's S3."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.aws import fake_aws
from tests.support.boxes import wait_until
from tests.support.gateways import (
    KEY,
    FakeBucket,
    Gateway,
    environment,
    prepare_empty_triton,
    running_gateway_server,
)
from tests.support.tritons import HEAD, Model, TritonProcess

SHAPE = [1, 3, 224, 224]


def short_name(name: str, inputs: str = "data", outputs: str = "pixels", side: int = 224) -> dict[str, Any]:
    return {
        "name": name,
        "input_name": inputs,
        "output_name": outputs,
        "input_shape": [1, 3, side, side],
    }


#: The reference's own short names and shapes, and a few more for these tests.
SHORT_NAMES = {
    "densenet": short_name("densenet_onnx", "data_0", "fc6_1"),
    "resnet50": short_name("resnet50_onnx", "data", "resnetv24_dense0_fwd"),
    "described": {**short_name("described_onnx", side=8), "preprocessing": "preprocess.json"},
    "squashed": {**short_name("squashed_onnx"), "input_shape": [1, 3, 8, 6]},
    "late": short_name("late_onnx", side=8),
    "slow": short_name("slow_onnx", side=8),
    "broken": short_name("broken_onnx", "x", "y"),
    "absent": short_name("absent_onnx", "x", "y"),
}
#: The head of a model that takes a while to load, and writes each load into a file.
RECORDING_HEAD = f'{HEAD}        time.sleep({{}})\n        open(os.environ["NOTES"], "a").write("{{}}\\n")\n'
#: Scores from a picture's mean: label 999 has the highest.
SCORES = """
mean = float(tensor(request, "{input}").mean())
scores = (mean * np.arange(1000) / 1000).astype(np.float32)
return {{"{output}": scores.reshape({shape})}}
"""


def echo(shape: list[int], head: str = HEAD) -> Model:
    return Model(
        'return {"pixels": tensor(request, "data")}',
        {"data": ("FP32", shape)},
        {"pixels": ("FP32", shape)},
        head=head,
    )


LABELS = [f"label {number}" for number in range(1000)]
MODELS = {
    "densenet_onnx": Model(
        SCORES.format(input="data_0", output="fc6_1", shape="1, 1000, 1, 1"),
        {"data_0": ("FP32", SHAPE)},
        {"fc6_1": ("FP32", [1, 1000, 1, 1])},
        head=RECORDING_HEAD.format(1, "densenet_onnx"),
    ),
    "resnet50_onnx": Model(
        SCORES.format(input="data", output="resnetv24_dense0_fwd", shape="1, 1000"),
        {"data": ("FP32", SHAPE)},
        {"resnetv24_dense0_fwd": ("FP32", [1, 1000])},
        head=RECORDING_HEAD.format(0, "resnet50_onnx"),
    ),
    "described_onnx": echo([1, 3, 8, 8]),
    "squashed_onnx": echo([1, 3, 8, 6]),
    "late_onnx": echo([1, 3, 8, 8], RECORDING_HEAD.format(1, "late_onnx")),
    "slow_onnx": echo([1, 3, 8, 8], RECORDING_HEAD.format(7, "slow_onnx")),
    "broken_onnx": Model(
        "return {}",
        {"x": ("FP32", SHAPE)},
        {"y": ("FP32", [1])},
        head=RECORDING_HEAD.format(1, "broken_onnx") + "        raise ValueError('no such luck')\n",
    ),
}
PREPROCESS = {"resize": 8, "crop": 8, "channels": "BGR", "scale": 0.5, "mean": [1, 2, 3], "std": [1, 1, 1]}


def make_picture() -> Image.Image:
    """A picture that is not square and has no two equal regions."""
    numbers = np.arange(40 * 30 * 3, dtype=np.uint32).reshape(30, 40, 3) * 7 % 251
    return Image.fromarray(numbers.astype(np.uint8))


def encode(image: Image.Image, kind: str = "png") -> bytes:
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


@dataclass
class ReferenceGateway:
    """A gateway with the reference's contract, and its bucket and Triton."""

    gateway: Gateway
    cloud: FakeBucket
    triton: TritonProcess
    env: dict[str, str]
    notes: Path

    def loads(self, model: str) -> int:
        """How many times Triton has loaded a model."""
        return self.notes.read_text().splitlines().count(model) if self.notes.exists() else 0

    def request(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        response = self.gateway.request(method, path, json=body, **options)
        return response.status_code, response.json()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceGateway]:
    """The gateway's own server. All models are in the bucket, none is loaded."""
    home = tmp_path_factory.mktemp("reference-gateway")
    notes = home / "loads"
    os.environ["NOTES"] = str(notes)
    with fake_aws() as address:
        cloud = FakeBucket(address)
        for name, model in MODELS.items():
            cloud.put_model(name, home / "models", model)
        cloud.put("models/densenet_onnx/densenet_onnx_labels.txt", "\n".join(LABELS).encode())
        cloud.put("models/described_onnx/preprocess.json", json.dumps(PREPROCESS).encode())
        cloud.put("images/x.jpg", encode(make_picture(), "jpeg"))
        cloud.put("images/x.png", encode(make_picture()))
        cloud.put("images/text.jpg", b"no picture")
        cloud.put("images/large.jpg", b"x" * (2**20 + 1))
        triton = prepare_empty_triton(home / "triton", home / "repository")
        triton.start()
        env = environment(
            address,
            f"127.0.0.1:{triton.box.grpc_port}",
            TRIREME_GATEWAY_REPOSITORY=str(home / "repository"),
            TRIREME_GATEWAY_SHORT_NAMES=json.dumps(SHORT_NAMES),
            TRIREME_GATEWAY_MAX_MB="1",
        )
        try:
            with running_gateway_server(home / "gateway.log", env) as gateway:
                yield ReferenceGateway(gateway, cloud, triton, env, notes)
        finally:
            triton.kill()
            del os.environ["NOTES"]


JPEG_REQUEST = {"s3_key": "images/x.jpg"}


def test_twenty_first_requests_load_the_model_once(reference: ReferenceGateway) -> None:
    assert reference.loads("densenet_onnx") == 0
    with ThreadPoolExecutor(20) as callers:
        responses = list(
            callers.map(lambda _: reference.request("POST", "/infer/densenet", JPEG_REQUEST), range(20))
        )
    assert [status for status, _ in responses] == [200] * 20
    assert reference.loads("densenet_onnx") == 1


def test_of_several_gateways_with_one_repository_one_loads_the_model(
    reference: ReferenceGateway, tmp_path: Path
) -> None:
    with (
        running_gateway_server(tmp_path / "second.log", reference.env) as second,
        running_gateway_server(tmp_path / "third.log", reference.env) as third,
        ThreadPoolExecutor(12) as callers,
    ):
        gateways = [reference.gateway, second, third] * 4
        answers = callers.map(
            lambda gateway: gateway.request("POST", "/infer/late", json=JPEG_REQUEST), gateways
        )
        assert {response.status_code for response in answers} == {200}
    assert reference.loads("late_onnx") == 1


def test_health_is_answered_without_a_key(reference: ReferenceGateway) -> None:
    assert reference.request("GET", "/health", key=None) == (200, {"status": "healthy"})


def test_infer_with_labels_returns_the_five_best(reference: ReferenceGateway) -> None:
    status, answer = reference.request("POST", "/infer/densenet", JPEG_REQUEST)
    assert status == 200, answer
    assert list(answer) == ["status", "model", "predictions", "result_s3_key"]
    assert (answer["status"], answer["model"]) == ("success", "densenet")
    assert answer["result_s3_key"] == "results/images/x.jpg_densenet_inference.json"
    assert [list(prediction) for prediction in answer["predictions"]] == [["label", "score"]] * 5
    assert [prediction["label"] for prediction in answer["predictions"]] == LABELS[:-6:-1]
    assert all(type(prediction["score"]) is float for prediction in answer["predictions"])
    stored = reference.cloud.get(answer["result_s3_key"])
    assert list(stored) == ["status", "model", "predictions"]
    assert stored == {name: answer[name] for name in stored}


def test_infer_without_labels_returns_the_nested_list_of_scores(reference: ReferenceGateway) -> None:
    status, answer = reference.request("POST", "/infer/resnet50", JPEG_REQUEST)
    assert status == 200, answer
    assert list(answer) == ["status", "model", "predictions", "result_s3_key"]
    assert np.array(answer["predictions"]).shape == (1, 1000)
    assert answer["result_s3_key"] == "results/images/x.jpg_resnet50_inference.json"
    assert reference.cloud.get(answer["result_s3_key"])["predictions"] == answer["predictions"]


@pytest.mark.parametrize("body", [{"name": "Test inference"}, {}, [], "text", None, JPEG_REQUEST])
def test_infer_of_the_default_model_accepts_any_json_body(reference: ReferenceGateway, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    response = reference.gateway.request("POST", "/infer", data=json.dumps(body), headers=headers)
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["status", "output"]
    assert response.json()["status"] == "success"
    (output,) = response.json()["output"]
    assert [len(output), len(output[0]), len(output[0][0])] == [1000, 1, 1]


def test_models_lists_the_bucket_and_what_triton_has_loaded(reference: ReferenceGateway) -> None:
    status, answer = reference.request("GET", "/models")
    assert status == 200
    assert list(answer) == ["status", "available_models_in_s3", "loaded_models_in_triton"]
    assert answer["status"] == "success"
    assert answer["available_models_in_s3"] == sorted(MODELS)
    assert "densenet_onnx" in answer["loaded_models_in_triton"]
    assert "broken_onnx" not in answer["loaded_models_in_triton"]


def test_load_model_loads_it_again(reference: ReferenceGateway) -> None:
    loads_before = reference.loads("resnet50_onnx")
    answer = reference.request("POST", "/load_model/resnet50")
    assert answer == (200, {"status": "success", "message": "Model resnet50 loaded successfully"})
    assert reference.loads("resnet50_onnx") == loads_before + 1


def test_the_picture_is_squashed_and_divided_by_255(reference: ReferenceGateway) -> None:
    status, answer = reference.request("POST", "/infer/squashed", {"s3_key": "images/x.png"})
    assert status == 200, answer
    # As the reference does: Pillow resizes the whole picture to the input, channels first.
    expected = np.array(make_picture().resize((6, 8))).transpose(2, 0, 1)[None].astype(np.float32) / 255.0
    np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), expected)


def test_a_models_preprocess_json_is_used(reference: ReferenceGateway) -> None:
    status, answer = reference.request("POST", "/infer/described", {"s3_key": "images/x.png"})
    assert status == 200, answer
    pixels = np.array(answer["predictions"], np.float32)
    assert pixels.shape == (1, 3, 8, 8)
    # Half of each value, minus the mean of its channel.
    assert pixels.max() > 1
    assert pixels.min() >= -3


def not_supported(name: str) -> dict[str, str]:
    return {"error": f"Model {name} not supported. Available models: {list(SHORT_NAMES)}"}


ODD_KEY = "images/../models/densenet_onnx/config.pbtxt"


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("densenet", {}, 400, {"error": "No S3 key provided"}),
        ("densenet", [], 400, {"error": "No S3 key provided"}),
        ("densenet", {"s3_key": "images/none.jpg"}, 404, {"error": ...}),
        (
            "densenet",
            {"s3_key": "images/text.jpg"},
            500,
            {"status": "error", "model": "densenet", "message": ...},
        ),
        ("densenet", {"s3_key": "images/large.jpg"}, 413, {"error": ...}),
        ("densenet", {"s3_key": ODD_KEY}, 400, {"error": ...}),
        ("densenet", {"s3_key": "models/densenet_onnx/config.pbtxt"}, 403, {"error": ...}),
        ("x", JPEG_REQUEST, 400, not_supported("x")),
        ("densenet%00", JPEG_REQUEST, 400, not_supported("densenet\0")),
        ("..%2f..%2fdensenet_onnx", JPEG_REQUEST, 404, {"message": ...}),
    ],
)
def test_an_error_has_the_references_status_and_body(
    reference: ReferenceGateway, path: str, body: object, status: int, expected: dict[str, Any]
) -> None:
    """Where the reference's own code says nothing, a member is any text."""
    found, answer = reference.request("POST", f"/infer/{path}", body)
    assert (found, list(answer)) == (status, list(expected)), answer
    assert {name: answer[name] if value is not ... else ... for name, value in expected.items()} == expected


@pytest.mark.parametrize("short_name", ["broken", "absent"])
def test_a_model_that_cannot_be_loaded_is_a_500_for_every_waiting_caller(
    reference: ReferenceGateway, short_name: str
) -> None:
    with ThreadPoolExecutor(5) as callers:
        responses = list(
            callers.map(lambda _: reference.request("POST", f"/infer/{short_name}", JPEG_REQUEST), range(5))
        )
    reason = {"broken": "no such luck", "absent": "'absent_onnx'"}[short_name]
    for status, answer in responses:
        assert status == 500
        assert list(answer) == ["status", "model", "message"]
        assert (answer["status"], answer["model"]) == ("error", short_name)
        assert reason in answer["message"]
    if short_name == "broken":
        assert reference.loads("broken_onnx") == 1
    status, answer = reference.request("POST", f"/load_model/{short_name}")
    assert (status, list(answer), answer["status"]) == (500, ["status", "message"], "error")
    assert reason in answer["message"]
    # Other requests are not affected.
    assert reference.request("GET", "/health")[1] == {"status": "healthy"}
    assert reference.request("POST", "/infer/resnet50", JPEG_REQUEST)[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models"), ("POST", "/infer"), ("POST", "/infer/densenet"), ("POST", "/load_model/densenet")],
)
@pytest.mark.parametrize("key", [None, "", "a-wrong-key"])
def test_without_its_key_a_caller_gets_api_gateways_403(
    reference: ReferenceGateway, method: str, path: str, key: str | None
) -> None:
    assert reference.request(method, path, JPEG_REQUEST, key=key) == (403, {"message": "Forbidden"})
    assert "a-wrong-key" not in reference.gateway.log.read_text()
    assert KEY not in reference.gateway.log.read_text()


def test_a_load_longer_than_a_request_goes_on_and_delays_no_other_caller(
    reference: ReferenceGateway, tmp_path: Path
) -> None:
    assert reference.request("POST", "/infer/densenet", JPEG_REQUEST)[0] == 200
    short_timeout = {**reference.env, "TRIREME_GATEWAY_TIMEOUT": "5", "TRIREME_GATEWAY_THREADS": "4"}
    with (
        running_gateway_server(tmp_path / "hasty.log", short_timeout) as gateway,
        ThreadPoolExecutor(8) as callers,
    ):
        assert gateway.request("POST", "/infer/densenet", json=JPEG_REQUEST).status_code == 200
        slow_calls = [
            callers.submit(gateway.request, "POST", "/infer/slow", json=JPEG_REQUEST) for _ in range(4)
        ]
        wait_until(
            lambda: (reference.triton.box.repository / "slow_onnx").is_dir(),
            description="the start of the load",
        )
        for path in ("/infer/densenet", "/infer"):
            assert gateway.request("POST", path, json=JPEG_REQUEST).status_code == 200
        assert gateway.request("GET", "/health").json() == {"status": "healthy"}
        assert not any(call.done() for call in slow_calls)
        for call in slow_calls:
            assert call.result().status_code == 500
        # A later request waits for the same load and starts no second one.
        wait_until(
            lambda: gateway.request("POST", "/infer/slow", json=JPEG_REQUEST).status_code == 200,
            description="the model",
        )
    assert reference.loads("slow_onnx") == 1
