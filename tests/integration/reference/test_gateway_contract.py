"""The reference gateway's own requests, word for word, at ours: real Triton, S3 played by moto."""

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

from sm.settings import HERE
from tests.support.aws import fake_aws
from tests.support.boxes import wait_until
from tests.support.dripping_proxy import dripping
from tests.support.gateways import (
    BUCKET,
    KEY,
    Cloud,
    Gateway,
    chalice_local,
    environment,
    new_triton,
    served,
)
from tests.support.tritons import HEAD, Model, TritonProcess

SHAPE = [1, 3, 224, 224]
#: The reference's own names and shapes, and a few more.
SHORT_NAMES = {
    "densenet": {
        "name": "densenet_onnx",
        "input_name": "data_0",
        "output_name": "fc6_1",
        "input_shape": SHAPE,
    },
    "resnet50": {
        "name": "resnet50_onnx",
        "input_name": "data",
        "output_name": "resnetv24_dense0_fwd",
        "input_shape": SHAPE,
    },
    "chrisnet": {
        "name": "densenet_onnx",
        "input_name": "data_0",
        "output_name": "fc6_1",
        "input_shape": SHAPE,
    },
    "described": {
        "name": "described_onnx",
        "input_name": "data",
        "output_name": "pixels",
        "input_shape": [1, 3, 8, 8],
        "preprocessing": "preprocess.json",
    },
    "squashed": {
        "name": "squashed_onnx",
        "input_name": "data",
        "output_name": "pixels",
        "input_shape": [1, 3, 8, 6],
    },
    "late": {
        "name": "late_onnx",
        "input_name": "data",
        "output_name": "pixels",
        "input_shape": [1, 3, 8, 8],
    },
    "slow": {
        "name": "slow_onnx",
        "input_name": "data",
        "output_name": "pixels",
        "input_shape": [1, 3, 8, 8],
    },
    "broken": {"name": "broken_onnx", "input_name": "x", "output_name": "y", "input_shape": SHAPE},
    "absent": {"name": "absent_onnx", "input_name": "x", "output_name": "y", "input_shape": SHAPE},
}
#: Loads slowly, and writes down that it has been loaded.
NOTED = f'{HEAD}        time.sleep({{}})\n        open(os.environ["NOTES"], "a").write("{{}}\\n")\n'
#: Of a picture's mean: the brighter, the more certain the later labels.
SCORES = """
mean = float(tensor(request, "{given}").mean())
scores = (mean * np.arange(1000) / 1000).astype(np.float32)
return {{"{told}": scores.reshape({shape})}}
"""
ECHO = 'return {"pixels": tensor(request, "data")}'
LABELS = [f"label {number}" for number in range(1000)]
MODELS = {
    "densenet_onnx": Model(
        SCORES.format(given="data_0", told="fc6_1", shape="1, 1000, 1, 1"),
        {"data_0": ("FP32", SHAPE)},
        {"fc6_1": ("FP32", [1, 1000, 1, 1])},
        head=NOTED.format(1, "densenet_onnx"),
    ),
    "resnet50_onnx": Model(
        SCORES.format(given="data", told="resnetv24_dense0_fwd", shape="1, 1000"),
        {"data": ("FP32", SHAPE)},
        {"resnetv24_dense0_fwd": ("FP32", [1, 1000])},
        head=NOTED.format(0, "resnet50_onnx"),
    ),
    "described_onnx": Model(ECHO, {"data": ("FP32", [1, 3, 8, 8])}, {"pixels": ("FP32", [1, 3, 8, 8])}),
    "squashed_onnx": Model(ECHO, {"data": ("FP32", [1, 3, 8, 6])}, {"pixels": ("FP32", [1, 3, 8, 6])}),
    "late_onnx": Model(
        ECHO,
        {"data": ("FP32", [1, 3, 8, 8])},
        {"pixels": ("FP32", [1, 3, 8, 8])},
        head=NOTED.format(1, "late_onnx"),
    ),
    "slow_onnx": Model(
        ECHO,
        {"data": ("FP32", [1, 3, 8, 8])},
        {"pixels": ("FP32", [1, 3, 8, 8])},
        head=NOTED.format(7, "slow_onnx"),
    ),
    "broken_onnx": Model(
        "return {}",
        {"x": ("FP32", SHAPE)},
        {"y": ("FP32", [1])},
        head=NOTED.format(1, "broken_onnx") + "        raise ValueError('no such luck')\n",
    ),
}
PREPROCESS = {
    "resize": 8,
    "crop": 8,
    "channels": "BGR",
    "scale": 0.5,
    "mean": [1, 2, 3],
    "std": [1, 1, 1],
}


def picture() -> Image.Image:
    """No square, and different everywhere."""
    numbers = np.arange(40 * 30 * 3, dtype=np.uint32).reshape(30, 40, 3) * 7 % 251
    return Image.fromarray(numbers.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "png") -> bytes:
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


@dataclass
class Reference:
    """A gateway with the reference's contract, its bucket and its Triton."""

    gateway: Gateway
    cloud: Cloud
    triton: TritonProcess
    env: dict[str, str]
    notes: Path

    def loads(self, model: str) -> int:
        """How often Triton has loaded a model."""
        return self.notes.read_text().splitlines().count(model) if self.notes.exists() else 0

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        response = self.gateway.ask(method, path, json=body, **options)
        return response.status_code, response.json()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The gateway's own server: nothing is loaded, all models lie in the bucket."""
    home = tmp_path_factory.mktemp("reference-gateway")
    notes = home / "loads"
    os.environ["NOTES"] = str(notes)
    with fake_aws() as address:
        cloud = Cloud(address)
        for name, model in MODELS.items():
            cloud.put_model(name, home / "models", model)
        cloud.put("models/densenet_onnx/densenet_onnx_labels.txt", "\n".join(LABELS).encode())
        cloud.put("models/described_onnx/preprocess.json", json.dumps(PREPROCESS).encode())
        cloud.put("images/x.jpg", encoded(picture(), "jpeg"))
        cloud.put("images/x.png", encoded(picture()))
        cloud.put("images/text.jpg", b"no picture")
        cloud.put("images/large.jpg", b"x" * (2**20 + 1))
        triton = new_triton(home / "triton", home / "repository")
        triton.start()
        env = environment(
            address,
            f"127.0.0.1:{triton.box.grpc_port}",
            TRIREME_GATEWAY_REPOSITORY=str(home / "repository"),
            TRIREME_GATEWAY_SHORT_NAMES=json.dumps(SHORT_NAMES),
            TRIREME_GATEWAY_MAX_MB="1",
        )
        try:
            with served(home / "gateway.log", env) as gateway:
                yield Reference(gateway, cloud, triton, env, notes)
        finally:
            triton.kill()
            del os.environ["NOTES"]


X = {"s3_key": "images/x.jpg"}


def test_twenty_first_requests_load_the_model_once(reference: Reference) -> None:
    assert reference.loads("densenet_onnx") == 0
    with ThreadPoolExecutor(20) as callers:
        answers = list(callers.map(lambda _: reference.ask("POST", "/infer/densenet", X), range(20)))
    assert [status for status, _ in answers] == [200] * 20
    assert reference.loads("densenet_onnx") == 1


def test_of_several_gateways_with_one_repository_one_loads_the_model(
    reference: Reference, tmp_path: Path
) -> None:
    with (
        served(tmp_path / "second.log", reference.env) as second,
        served(tmp_path / "third.log", reference.env) as third,
        ThreadPoolExecutor(12) as callers,
    ):
        gateways = [reference.gateway, second, third] * 4
        answers = callers.map(lambda gateway: gateway.ask("POST", "/infer/late", json=X), gateways)
        assert {response.status_code for response in answers} == {200}
    assert reference.loads("late_onnx") == 1


def test_health(reference: Reference) -> None:
    assert reference.ask("GET", "/health", key=None) == (200, {"status": "healthy"})


def test_infer_with_labels_answers_the_five_best(reference: Reference) -> None:
    status, told = reference.ask("POST", "/infer/densenet", X)
    assert status == 200, told
    assert list(told) == ["status", "model", "predictions", "result_s3_key"]
    assert (told["status"], told["model"]) == ("success", "densenet")
    assert told["result_s3_key"] == "results/images/x.jpg_densenet_inference.json"
    assert [list(row) for row in told["predictions"]] == [["label", "score"]] * 5
    assert [row["label"] for row in told["predictions"]] == LABELS[:-6:-1]
    assert all(type(row["score"]) is float for row in told["predictions"])
    stored = reference.cloud.get(told["result_s3_key"])
    assert list(stored) == ["status", "model", "predictions"]
    assert stored == {name: told[name] for name in stored}


def test_infer_without_labels_answers_the_bare_nested_list(reference: Reference) -> None:
    status, told = reference.ask("POST", "/infer/resnet50", X)
    assert status == 200, told
    assert list(told) == ["status", "model", "predictions", "result_s3_key"]
    assert np.array(told["predictions"]).shape == (1, 1000)
    assert told["result_s3_key"] == "results/images/x.jpg_resnet50_inference.json"
    assert reference.cloud.get(told["result_s3_key"])["predictions"] == told["predictions"]


def test_two_short_names_may_mean_one_model(reference: Reference) -> None:
    status, told = reference.ask("POST", "/infer/chrisnet", X)
    assert (status, told["model"]) == (200, "chrisnet")
    assert told["result_s3_key"] == "results/images/x.jpg_chrisnet_inference.json"


@pytest.mark.parametrize("body", [{"name": "Test inference"}, {}, [], "text", None, X])
def test_infer_of_the_default_model_takes_any_json_body(reference: Reference, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    response = reference.gateway.ask("POST", "/infer", data=json.dumps(body), headers=headers)
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["status", "output"]
    assert response.json()["status"] == "success"
    (output,) = response.json()["output"]
    assert [len(output), len(output[0]), len(output[0][0])] == [1000, 1, 1]


def test_models(reference: Reference) -> None:
    status, told = reference.ask("GET", "/models")
    assert status == 200
    assert list(told) == ["status", "available_models_in_s3", "loaded_models_in_triton"]
    assert told["status"] == "success"
    assert told["available_models_in_s3"] == sorted(MODELS)
    assert "densenet_onnx" in told["loaded_models_in_triton"]
    assert "broken_onnx" not in told["loaded_models_in_triton"]


def test_load_model(reference: Reference) -> None:
    before = reference.loads("resnet50_onnx")
    answer = reference.ask("POST", "/load_model/resnet50")
    assert answer == (200, {"status": "success", "message": "Model resnet50 loaded successfully"})
    assert reference.loads("resnet50_onnx") == before + 1


def test_the_picture_is_squashed_and_divided_by_255(reference: Reference) -> None:
    status, told = reference.ask("POST", "/infer/squashed", {"s3_key": "images/x.png"})
    assert status == 200, told
    # As the reference's own lines do: Pillow's resize to the whole of the input, channels first.
    expected = np.array(picture().resize((6, 8))).transpose(2, 0, 1)[None].astype(np.float32) / 255.0
    np.testing.assert_array_equal(np.array(told["predictions"], np.float32), expected)


def test_a_preprocess_json_may_be_chosen(reference: Reference) -> None:
    status, told = reference.ask("POST", "/infer/described", {"s3_key": "images/x.png"})
    assert status == 200, told
    pixels = np.array(told["predictions"], np.float32)
    assert pixels.shape == (1, 3, 8, 8)
    # Half of each value, less the mean of its channel.
    assert pixels.max() > 1
    assert pixels.min() >= -3


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (
            "/infer/x",
            X,
            400,
            {"error": f"Model x not supported. Available models: {list(SHORT_NAMES)}"},
        ),
        ("/infer/densenet", {}, 400, {"error": "No S3 key provided"}),
        ("/infer/densenet", {"s3_key": ""}, 400, {"error": "No S3 key provided"}),
        ("/infer/densenet", [], 400, {"error": "No S3 key provided"}),
        (
            "/infer/densenet",
            {"s3_key": "images/none.jpg"},
            404,
            {"error": "Failed to retrieve image from S3: there is no object 'images/none.jpg'"},
        ),
        (
            "/infer/densenet",
            {"s3_key": "images/text.jpg"},
            500,
            {
                "status": "error",
                "model": "densenet",
                "message": "the object is no picture: the bytes are not a JPEG, PNG or WebP picture",
            },
        ),
        (
            "/infer/densenet",
            {"s3_key": "images/large.jpg"},
            413,
            {"error": "'images/large.jpg' is larger than 1,048,576 bytes"},
        ),
        (
            "/infer/densenet",
            {"s3_key": "images/../models/densenet_onnx/config.pbtxt"},
            400,
            {"error": "s3_key: has a character or a part that keys may not have here"},
        ),
        (
            "/infer/densenet",
            {"s3_key": "models/densenet_onnx/config.pbtxt"},
            403,
            {"error": "s3_key: must begin with images/"},
        ),
        (
            "/infer/densenet%00",
            X,
            400,
            {"error": f"Model densenet\0 not supported. Available models: {list(SHORT_NAMES)}"},
        ),
        (
            "/infer/..%2f..%2fdensenet_onnx",
            X,
            404,
            {"message": "no such path: /infer/../../densenet_onnx"},
        ),
        ("/load_model/x", None, 400, {"error": "Model x not supported"}),
    ],
)
def test_errors(reference: Reference, path: str, body: object, status: int, told: dict[str, Any]) -> None:
    said = reference.ask("POST", path, body)
    assert said == (status, told)
    assert list(said[1]) == list(told)


@pytest.mark.parametrize("short", ["broken", "absent"])
def test_a_model_that_cannot_be_loaded_is_a_500_for_all_who_wait(reference: Reference, short: str) -> None:
    with ThreadPoolExecutor(5) as callers:
        answers = list(callers.map(lambda _: reference.ask("POST", f"/infer/{short}", X), range(5)))
    reason = {"broken": "no such luck", "absent": "the bucket has no model 'absent_onnx'"}[short]
    for status, told in answers:
        assert status == 500
        assert list(told) == ["status", "model", "message"]
        assert (told["status"], told["model"]) == ("error", short)
        assert reason in told["message"]
    if short == "broken":
        assert reference.loads("broken_onnx") == 1
    status, told = reference.ask("POST", f"/load_model/{short}")
    assert (status, list(told), told["status"]) == (500, ["status", "message"], "error")
    assert reason in told["message"]
    # Nobody else is the worse for it.
    assert reference.ask("GET", "/health")[1] == {"status": "healthy"}
    assert reference.ask("POST", "/infer/resnet50", X)[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models"), ("POST", "/infer"), ("POST", "/infer/densenet"), ("POST", "/load_model/densenet")],
)
@pytest.mark.parametrize("key", [None, "", "a-wrong-key"])
def test_without_its_key_a_caller_gets_api_gateway_s_answer(
    reference: Reference, method: str, path: str, key: str | None
) -> None:
    assert reference.ask(method, path, X, key=key) == (403, {"message": "Forbidden"})
    assert "a-wrong-key" not in reference.gateway.log.read_text()
    assert KEY not in reference.gateway.log.read_text()


def test_a_model_that_a_new_triton_has_not_is_loaded_again(reference: Reference) -> None:
    before = reference.loads("resnet50_onnx")
    reference.triton.kill()
    status, told = reference.ask("POST", "/infer/resnet50", X)
    assert (status, list(told)) == (500, ["status", "model", "message"])
    unhealthy = reference.gateway.ask("GET", "/health", key=None)
    wait_until(
        lambda: reference.gateway.ask("GET", "/health").status_code == 503, description="an unhealthy gateway"
    )
    assert list(reference.gateway.ask("GET", "/health").json()) == ["status", "error"]
    assert unhealthy.json()["status"] in ("healthy", "unhealthy")
    reference.triton.start()
    wait_until(lambda: reference.ask("GET", "/health")[0] == 200, description="a healthy gateway")
    wait_until(lambda: reference.ask("POST", "/infer/resnet50", X)[0] == 200, description="the model back")
    assert reference.loads("resnet50_onnx") == before + 1


def test_where_s3_is_away_or_slow_the_caller_is_told_in_time(reference: Reference, tmp_path: Path) -> None:
    # Nothing has to be loaded meanwhile.
    assert reference.ask("POST", "/infer/densenet", X)[0] == 200
    away = {**reference.env, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "TRIREME_GATEWAY_TIMEOUT": "3"}
    with served(tmp_path / "away.log", away) as gateway:
        for path, keys in (("/infer/densenet", ["status", "model", "message"]),):
            response = gateway.ask("POST", path, json=X)
            assert (response.status_code, list(response.json())) == (500, keys)
        assert gateway.ask("GET", "/models").json()["status"] == "error"
        assert gateway.ask("GET", "/health").json() == {"status": "healthy"}
        # Triton alone is needed for this.
        assert gateway.ask("POST", "/infer", json={}).status_code == 200
    with dripping(f"http://{reference.cloud.address}") as proxy:
        slow = {**away, "AWS_ENDPOINT_URL": proxy.url}
        with served(tmp_path / "slow.log", slow) as gateway:
            assert gateway.ask("POST", "/infer/densenet", json=X).status_code == 200
            proxy.slow_from = 0
            with ThreadPoolExecutor(8) as callers:
                waiting = [callers.submit(gateway.ask, "POST", "/infer/densenet", json=X) for _ in range(8)]
                wait_until(lambda: proxy.open, description="a connection to S3")
                assert gateway.ask("POST", "/infer", json={}).status_code == 200
                assert {future.result().status_code for future in waiting} == {500}


def test_a_load_that_takes_longer_than_a_request_goes_on_and_keeps_nobody_else_waiting(
    reference: Reference, tmp_path: Path
) -> None:
    assert reference.ask("POST", "/infer/densenet", X)[0] == 200
    hasty = {**reference.env, "TRIREME_GATEWAY_TIMEOUT": "5", "TRIREME_GATEWAY_THREADS": "4"}
    with served(tmp_path / "hasty.log", hasty) as gateway, ThreadPoolExecutor(8) as callers:
        assert gateway.ask("POST", "/infer/densenet", json=X).status_code == 200
        waiting = [callers.submit(gateway.ask, "POST", "/infer/slow", json=X) for _ in range(4)]
        wait_until(
            lambda: (reference.triton.box.repository / "slow_onnx").is_dir(), description="the load begun"
        )
        for path in ("/infer/densenet", "/infer"):
            assert gateway.ask("POST", path, json=X).status_code == 200
        assert gateway.ask("GET", "/health").json() == {"status": "healthy"}
        assert not any(future.done() for future in waiting)
        for future in waiting:
            assert future.result().status_code == 500
            assert "still being loaded" in future.result().json()["message"]
        # A request of its own time begins no second load.
        wait_until(
            lambda: gateway.ask("POST", "/infer/slow", json=X).status_code == 200, description="the model"
        )
    assert reference.loads("slow_onnx") == 1


def test_chalice_local_speaks_it_too_and_its_own_refusals_are_chalice_s(
    reference: Reference, tmp_path: Path
) -> None:
    with chalice_local(tmp_path / "local.log", reference.env) as gateway:
        assert gateway.ask("GET", "/health", key=None).json() == {"status": "healthy"}
        told = gateway.ask("POST", "/infer/densenet", json=X).json()
        assert list(told) == ["status", "model", "predictions", "result_s3_key"]
        assert list(gateway.ask("POST", "/infer", json={}).json()) == ["status", "output"]
        typed = gateway.ask("POST", "/infer", data=b"x", headers={"Content-Type": "image/jpeg"})
        assert (typed.status_code, list(typed.json())) == (415, ["Code", "Message"])


def test_the_short_names_of_the_page_are_the_ones_tested() -> None:
    page = (HERE / "docs" / "deploy" / "gateway.md").read_text()
    for short in ("densenet", "resnet50"):
        assert json.dumps(SHORT_NAMES[short]) in page
    assert BUCKET not in page
