"""The reference gateway's requests, sent unchanged to ours, with a real Triton and moto's S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.aws import fake_aws
from tests.support.boxes import retry_until_ok, wait_until
from tests.support.gateways import (
    KEY,
    FakeBucket,
    Gateway,
    addresses_of,
    environment,
    prepare_empty_triton,
    running_gateway_server,
    short_name,
)
from tests.support.hostile_pictures import encode
from tests.support.tritons import HEAD, Model, TritonProcess

#: The reference's own short names and shapes, and a few more for these tests.
SHORT_NAMES = {
    "densenet": short_name("densenet_onnx", "data_0", "fc6_1"),
    "resnet50": short_name("resnet50_onnx", "data", "resnetv24_dense0_fwd"),
    "described": {**short_name("described_onnx", side=8), "preprocessing": "preprocess.json"},
    "squashed": {**short_name("squashed_onnx"), "input_shape": [1, 3, 8, 6]},
    "late": short_name("late_onnx", side=8),
    "slow": short_name("slow_onnx", side=8),
    "broken": short_name("broken_onnx", side=8),
    "absent": short_name("absent_onnx", side=8),
}
#: Scores from a picture's mean: label 999 has the highest.
SCORES = """
mean = float(tensor(request, "{input}").mean())
scores = (mean * np.arange(1000) / 1000).astype(np.float32)
return {{"{output}": scores.reshape({shape})}}
"""
LABELS = [f"label {number}" for number in range(1000)]
PREPROCESS = {"resize": 8, "crop": 8, "channels": "BGR", "scale": 0.5, "mean": [1, 2, 3], "std": [1, 1, 1]}
JPEG_REQUEST = {"s3_key": "images/x.jpg"}


def scores(inputs: str, outputs: str, shape: list[int], head: str) -> Model:
    source = SCORES.format(input=inputs, output=outputs, shape=str(shape)[1:-1])
    return Model(source, {inputs: ("FP32", [1, 3, 224, 224])}, {outputs: ("FP32", shape)}, head=head)


def echo(head: str = HEAD, width: int = 8) -> Model:
    tensor = ("FP32", [1, 3, 8, width])
    return Model(
        'return {"pixels": tensor(request, "data")}', {"data": tensor}, {"pixels": tensor}, head=head
    )


def models(notes: Path) -> dict[str, Model]:
    def noted(name: str, seconds: float = 0, more: str = "") -> str:
        """The head of a model that takes a while to load, and writes each load into a file."""
        note = f"open({str(notes)!r}, 'a').write('{name}\\n')"
        return f"{HEAD}        time.sleep({seconds})\n        {note}\n{more}"

    return {
        "densenet_onnx": scores("data_0", "fc6_1", [1, 1000, 1, 1], noted("densenet_onnx", 1)),
        "resnet50_onnx": scores("data", "resnetv24_dense0_fwd", [1, 1000], noted("resnet50_onnx")),
        "described_onnx": echo(),
        "squashed_onnx": echo(width=6),
        "late_onnx": echo(noted("late_onnx", 1)),
        "slow_onnx": echo(noted("slow_onnx", 7)),
        "broken_onnx": echo(noted("broken_onnx", 1, "        raise ValueError('no such luck')\n")),
    }


def make_picture() -> Image.Image:
    """A picture that is not square and has no two equal regions."""
    numbers = np.arange(40 * 30 * 3, dtype=np.uint32).reshape(30, 40, 3) * 7 % 251
    return Image.fromarray(numbers.astype(np.uint8))


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
        return self.notes.read_text().splitlines().count(model)

    def request(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        response = self.gateway.request(method, path, json=body, **options)
        return response.status_code, response.json()


def infer_at_once(name: str, *gateways: Gateway) -> list[tuple[int, Any]]:
    """Send one request to each gateway at once."""
    with ThreadPoolExecutor(len(gateways)) as callers:
        responses = list(callers.map(lambda gateway: gateway.infer(name, JPEG_REQUEST), gateways))
    return [(response.status_code, response.json()) for response in responses]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceGateway]:
    """The gateway's own server. All models are in the bucket, none is loaded."""
    home = tmp_path_factory.mktemp("reference-gateway")
    notes, repository = home / "loads", home / "repository"
    notes.touch()
    with fake_aws() as address:
        cloud = FakeBucket(address)
        for name, model in models(notes).items():
            cloud.put_model(name, home / "models", model)
        cloud.put("models/densenet_onnx/densenet_onnx_labels.txt", "\n".join(LABELS).encode())
        cloud.put("models/described_onnx/preprocess.json", json.dumps(PREPROCESS).encode())
        for kind, key in (("jpeg", "x.jpg"), ("png", "x.png")):
            cloud.put(f"images/{key}", encode(make_picture(), kind))
        cloud.put("images/text.jpg", b"no picture")
        cloud.put("images/large.jpg", b"x" * (2**20 + 1))
        triton = prepare_empty_triton(home / "triton", repository)
        options = {"REPOSITORY": str(repository), "SHORT_NAMES": json.dumps(SHORT_NAMES), "MAX_MB": "1"}
        variables = {f"TRIREME_GATEWAY_{name}": value for name, value in options.items()}
        env = environment(address, addresses_of(triton), **variables)
        triton.start()
        try:
            with running_gateway_server(home / "gateway.log", env) as gateway:
                yield ReferenceGateway(gateway, cloud, triton, env, notes)
        finally:
            triton.kill()


def test_of_all_callers_of_several_gateways_with_one_repository_one_loads_the_model(
    reference: ReferenceGateway, tmp_path: Path
) -> None:
    with running_gateway_server(tmp_path / "second.log", reference.env) as second:
        answers = infer_at_once("late", *[reference.gateway, second] * 10)
    assert [status for status, _ in answers] == [200] * 20
    assert reference.loads("late_onnx") == 1


def test_health_is_answered_without_a_key(reference: ReferenceGateway) -> None:
    assert reference.request("GET", "/health", key=None) == (200, {"status": "healthy"})


@pytest.mark.parametrize("name", ["densenet", "resnet50"])
def test_infer_returns_the_five_best_labels_or_without_labels_the_nested_list(
    reference: ReferenceGateway, name: str
) -> None:
    status, answer = reference.request("POST", f"/infer/{name}", JPEG_REQUEST)
    assert status == 200, answer
    assert list(answer) == ["status", "model", "predictions", "result_s3_key"]
    assert (answer["status"], answer["model"]) == ("success", name)
    assert answer["result_s3_key"] == f"results/images/x.jpg_{name}_inference.json"
    if name == "densenet":
        assert [list(row) for row in answer["predictions"]] == [["label", "score"]] * 5
        assert [row["label"] for row in answer["predictions"]] == LABELS[:-6:-1]
    else:
        assert np.array(answer["predictions"]).shape == (1, 1000)
    stored = reference.cloud.get(answer.pop("result_s3_key"))
    assert list(stored.items()) == list(answer.items())


@pytest.mark.parametrize("body", [{"name": "Test inference"}, {}, [], "text", None, JPEG_REQUEST])
def test_infer_of_the_default_model_accepts_any_json_body(reference: ReferenceGateway, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    response = reference.gateway.request("POST", "/infer", data=json.dumps(body), headers=headers)
    assert (response.status_code, list(response.json())) == (200, ["status", "output"]), response.text
    assert response.json()["status"] == "success"
    assert np.array(response.json()["output"]).shape == (1, 1000, 1, 1)


def test_models_lists_the_bucket_and_what_triton_has_loaded(reference: ReferenceGateway) -> None:
    status, answer = reference.request("GET", "/models")
    assert (status, list(answer)) == (200, ["status", "available_models_in_s3", "loaded_models_in_triton"])
    assert answer["available_models_in_s3"] == sorted(models(reference.notes))
    assert "densenet_onnx" in answer["loaded_models_in_triton"]
    assert "broken_onnx" not in answer["loaded_models_in_triton"]


def test_load_model_loads_it_again(reference: ReferenceGateway) -> None:
    loads_before = reference.loads("resnet50_onnx")
    answer = reference.request("POST", "/load_model/resnet50")
    assert answer == (200, {"status": "success", "message": "Model resnet50 loaded successfully"})
    assert reference.loads("resnet50_onnx") == loads_before + 1


def test_the_picture_is_squashed_and_divided_by_255_or_made_by_preprocess_json(
    reference: ReferenceGateway,
) -> None:
    pixels = {}
    for name in ("squashed", "described"):
        status, answer = reference.request("POST", f"/infer/{name}", {"s3_key": "images/x.png"})
        assert status == 200, answer
        pixels[name] = np.array(answer["predictions"], np.float32)
    # As the reference does: Pillow resizes the whole picture to the input, channels first.
    expected = np.array(make_picture().resize((6, 8))).transpose(2, 0, 1)[None].astype(np.float32) / 255.0
    np.testing.assert_array_equal(pixels["squashed"], expected)
    # Half of each value, minus the mean of its channel.
    assert pixels["described"].shape == (1, 3, 8, 8)
    assert pixels["described"].min() >= -3
    assert pixels["described"].max() > 1


def not_supported(name: str) -> dict[str, str]:
    return {"error": f"Model {name} not supported. Available models: {list(SHORT_NAMES)}"}


FAILED = {"status": "error", "model": "densenet", "message": ...}
NO_KEY = {"error": "No S3 key provided"}
ODD_KEY = "images/../models/densenet_onnx/config.pbtxt"


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("densenet", {}, 400, NO_KEY),
        ("densenet", [], 400, NO_KEY),
        ("densenet", {"s3_key": "images/none.jpg"}, 404, {"error": ...}),
        ("densenet", {"s3_key": "images/text.jpg"}, 500, FAILED),
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
    assert answer.items() >= {name: value for name, value in expected.items() if value is not ...}.items()


@pytest.mark.parametrize("name", ["broken", "absent"])
def test_a_model_that_cannot_be_loaded_is_a_500_for_every_waiting_caller(
    reference: ReferenceGateway, name: str
) -> None:
    for status, answer in infer_at_once(name, *[reference.gateway] * 5):
        assert (status, list(answer)) == (500, ["status", "model", "message"])
        assert (answer["status"], answer["model"]) == ("error", name)
    assert reference.loads("broken_onnx") == 1
    status, answer = reference.request("POST", "/load_model/absent")
    assert (status, list(answer), answer["status"]) == (500, ["status", "message"], "error")
    # Other requests are not affected.
    assert reference.request("GET", "/health")[1] == {"status": "healthy"}
    assert reference.request("POST", "/infer/resnet50", JPEG_REQUEST)[0] == 200


@pytest.mark.parametrize("path", ["/models", "/infer", "/infer/densenet", "/load_model/densenet"])
@pytest.mark.parametrize("key", [None, "", "a-wrong-key"])
def test_without_its_key_a_caller_gets_api_gateways_403(
    reference: ReferenceGateway, path: str, key: str | None
) -> None:
    method = "GET" if path == "/models" else "POST"
    assert reference.request(method, path, JPEG_REQUEST, key=key) == (403, {"message": "Forbidden"})
    log = reference.gateway.log.read_text()
    assert "a-wrong-key" not in log
    assert KEY not in log


def test_a_load_longer_than_a_request_goes_on_and_delays_no_other_caller(
    reference: ReferenceGateway, tmp_path: Path
) -> None:
    short_timeout = {**reference.env, "TRIREME_GATEWAY_TIMEOUT": "5", "TRIREME_GATEWAY_THREADS": "4"}
    with (
        running_gateway_server(tmp_path / "hasty.log", short_timeout) as gateway,
        ThreadPoolExecutor(1) as callers,
    ):
        retry_until_ok(lambda: gateway.infer("densenet", JPEG_REQUEST))  # the first sets up S3 and Triton
        slow_calls = callers.submit(infer_at_once, "slow", *[gateway] * 4)
        folder = reference.triton.box.repository / "slow_onnx"
        wait_until(folder.is_dir, description="the start of the load")
        for path in ("/infer/densenet", "/infer"):
            assert gateway.request("POST", path, json=JPEG_REQUEST).status_code == 200
        assert gateway.request("GET", "/health").json() == {"status": "healthy"}
        assert not slow_calls.done()
        assert [status for status, _ in slow_calls.result()] == [500] * 4
        # A later request waits for the same load and starts no second one.
        retry_until_ok(lambda: gateway.infer("slow", JPEG_REQUEST))
    assert reference.loads("slow_onnx") == 1
