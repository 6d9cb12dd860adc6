"""The routes of ``chalice local``, with a bucket and two Tritons."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chalicelib.options import Options
from chalicelib.service import Service
from chalicelib.storage import Storage
from chalicelib.tritons import Tritons

from sm.router.answers import dumps
from tests.support.gateways import BLUE, BUCKET, MODELS, RED, FakeBucket, Gateway

BLUE_PAYLOAD = {"payload": {"image": base64.b64encode(BLUE).decode()}}


@pytest.fixture(autouse=True, scope="module")
def stored_objects(cloud: FakeBucket) -> Iterator[None]:
    """Pictures and texts, and two models that are not served."""
    zeros = io.BytesIO()
    np.save(zeros, np.zeros((3, 8, 8), np.float32))
    cloud.put("images/red.png", RED)
    cloud.put("images/whatever", RED, ContentType="image/png")
    cloud.put("images/zeros.npy", zeros.getvalue())
    cloud.put("images/words.json", b'{"tensor": ["a", "b"]}')
    models = {
        "waiting/config.pbtxt": b"",
        "broken/config.pbtxt": b"?",
        "broken/1/model.py": b"raise ValueError",
    }
    for key, content in models.items():
        cloud.put(f"models/{key}", content)
    yield
    for key in models:
        cloud.s3.delete_object(Bucket=BUCKET, Key=f"models/{key}")


def test_health_names_each_triton_and_needs_no_key(local_gateway: Gateway) -> None:
    response = local_gateway.request("GET", "/health", key=None)
    assert (response.status_code, response.json()["status"]) == (200, "healthy")
    assert list(response.json()["tritons"].values()) == ["ready", "ready"]


def test_models_lists_those_of_the_bucket_and_those_loaded(local_gateway: Gateway) -> None:
    assert local_gateway.request("GET", "/models").json() == {
        "bucket": sorted([*MODELS, "waiting", "broken"]),
        "loaded": {name: ["1"] for name in sorted(MODELS)},
    }


def test_the_result_for_a_picture_in_the_bucket_is_stored_there(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    response = local_gateway.infer("resnet", {"s3_key": "images/red.png"})
    assert response.status_code == 200, response.text
    predictions = response.json().pop("predictions")
    assert (len(predictions), predictions[0]) == (5, "1.000000:0:0:tabby")
    key = "results/images/red.png_resnet_inference.json"
    assert response.json() == {
        "status": "success",
        "model": "resnet",
        "predictions": predictions,
        "result_s3_key": key,
    }
    assert cloud.get(key) | {"predictions": predictions, "s3_key": "images/red.png"} == cloud.get(key)


def test_a_model_may_have_an_explicit_batch_of_one_and_without_a_client_returns_its_five_best_labels(
    local_gateway: Gateway,
) -> None:
    answers = [local_gateway.infer(name, BLUE_PAYLOAD).json() for name in ("explicit", "colours")]
    assert answers[0]["predictions"] == answers[1]["predictions"]
    assert answers[0]["result_s3_key"] is None
    assert len(answers[0]["predictions"]) == 5
    assert answers[0]["predictions"][:2] == [
        {"label": "teapot", "index": 2, "score": 1.0},
        {"label": "comic book", "index": 5, "score": 0.5},
    ]
    tensor = np.zeros((3, 8, 8)).tolist()
    for nested_list in (tensor, [tensor]):
        response = local_gateway.infer("explicit", {"payload": {"tensor": nested_list}})
        assert [row["score"] for row in response.json()["predictions"]] == [0.0] * 5


def test_an_objects_type_comes_from_its_content_type_or_its_ending(local_gateway: Gateway) -> None:
    def predictions(model: str, key: str) -> object:
        return local_gateway.infer(model, {"s3_key": f"images/{key}"}).json()["predictions"]

    scores = [predictions("colours", key)[0]["score"] for key in ("zeros.npy", "whatever")]  # type: ignore[index]
    assert scores == [0.0, 1.0]
    assert predictions("words", "words.json") == {"y": ["A", "B"]}


def test_parameters_and_version_of_the_caller_are_used(local_gateway: Gateway) -> None:
    body = {"s3_key": "images/red.png", "parameters": {"top": 1}, "version": "1"}
    assert local_gateway.infer("resnet", body).json()["predictions"] == ["1.000000:0:0:tabby"]
    response = local_gateway.infer("resnet", {"s3_key": "images/red.png"}, params={"version": "7"})
    assert response.status_code == 400


def test_an_unknown_model_is_a_400_that_lists_the_others(local_gateway: Gateway) -> None:
    payload = {"payload": {"tensor": [1]}}
    for path in ("/infer/nobody", "/load_model/nobody"):
        response = local_gateway.request("POST", path, json=payload)
        assert (response.status_code, response.json()["code"]) == (400, "unknown_model")
        assert set(MODELS) <= set(response.json()["models"])
    response = local_gateway.infer("waiting", payload)
    assert response.status_code == 400
    assert "POST /load_model/waiting" in response.json()["error"]
    response = local_gateway.request("POST", "/load_model/broken")
    assert (response.status_code, response.json()["code"]) == (400, "bad_input"), response.text


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"{}", 400, "s3_key"),
        (b'{"s3_key": 7}', 400, "s3_key"),
        (b'{"s3_key": "images/none.png"}', 404, None),
        (b'{"s3_key": "models/resnet/labels.txt"}', 403, "s3_key"),
        (b'{"key": "images/red.png"}', 422, "key"),
        (b'{"payload": {"picture": "x"}}', 422, "payload.image"),
        (b'{"payload": {"image": "QUJD"}, "parameters": {"top": 0}}', 422, "parameters.top"),
        (b'{"payload": [], "version": "1"}', 422, "payload"),
        (b'{"payload": {}, "version": "x"}', 422, "version"),
    ],
)
def test_a_bad_request_is_an_error_with_its_field(
    local_gateway: Gateway, body: bytes, status: int, field: str | None
) -> None:
    headers = {"Content-Type": "application/json"}
    response = local_gateway.request("POST", "/infer/resnet", data=body, headers=headers)
    assert (response.status_code, response.json().get("field")) == (status, field), response.text
    assert {"error", "code", "request_id"} <= response.json().keys()


def test_concurrent_first_requests_all_get_a_complete_client(
    gateway_env: dict[str, str], cloud: FakeBucket, local_gateway: Gateway
) -> None:
    options = Options.read(gateway_env)
    tritons = Tritons(options.peers, 60)
    service = Service(options, Storage(BUCKET, 2**20, cloud.s3), tritons)
    with ThreadPoolExecutor(8) as executor:
        bodies = [dumps(BLUE_PAYLOAD)] * 16
        answers = list(executor.map(lambda body: service.infer("colours", body, "", "id"), bodies))
    tritons.close()
    assert {answer["predictions"][0]["label"] for answer in answers} == {"teapot"}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "status", "code"),
    [
        ("POST", "/infer", "application/json", 404, "not_found"),
        ("GET", "/infer/resnet", "application/json", 405, "method_not_allowed"),
        ("POST", "/infer/resnet", "image/jpeg", 415, "unsupported_content_type"),
    ],
)
def test_errors_of_chalice_itself_have_the_same_shape(
    local_gateway: Gateway, method: str, path: str, content_type: str, status: int, code: str
) -> None:
    response = local_gateway.request(method, path, data=b"{}", headers={"Content-Type": content_type})
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_key_is_required_and_no_key_is_ever_logged(local_gateway: Gateway) -> None:
    for method, path in (("GET", "/models"), ("POST", "/load_model/resnet"), ("POST", "/infer/resnet")):
        assert local_gateway.request(method, path, key=None, json={}).status_code == 401
        response = local_gateway.request(method, path, key="a-wrong-key", json={})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert local_gateway.request("GET", "/models").status_code == 200
    log = local_gateway.log.read_text()
    assert '"caller":"tests"' in log
    assert "a-wrong-key" not in log
    assert "the-key-of-a-test" not in log
