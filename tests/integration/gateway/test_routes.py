"""The routes of ``chalice local``, with a bucket and two Tritons."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from chalicelib.options import Options
from chalicelib.service import Service
from chalicelib.storage import Storage
from chalicelib.tritons import Tritons

from sm.router.answers import dumps
from tests.support.gateways import BLUE, BUCKET, MODELS, RED, FakeBucket, Gateway
from tests.support.npy_bodies import encode_npy

BLUE_PAYLOAD = {"payload": {"image": base64.b64encode(BLUE).decode()}}


@pytest.fixture(autouse=True, scope="module")
def stored_objects(cloud: FakeBucket) -> Iterator[None]:
    """Pictures and texts, and two models that are not served."""
    cloud.put("images/red.png", RED)
    cloud.put("images/whatever", RED, ContentType="image/png")
    cloud.put("images/zeros.npy", encode_npy(np.zeros((3, 8, 8), np.float32)))
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


def predict(gateway: Gateway, model: str, body: object) -> Any:
    response = gateway.infer(model, body)
    assert response.status_code == 200, response.text
    return response.json()["predictions"]


def test_health_names_each_triton_without_a_key_and_models_those_stored_and_loaded(
    local_gateway: Gateway,
) -> None:
    health = local_gateway.request("GET", "/health", key=None)
    assert (health.status_code, health.json()["status"]) == (200, "healthy")
    assert list(health.json()["tritons"].values()) == ["ready", "ready"]
    assert local_gateway.request("GET", "/models").json() == {
        "bucket": sorted([*MODELS, "waiting", "broken"]),
        "loaded": {name: ["1"] for name in sorted(MODELS)},
    }


def test_the_result_for_a_picture_in_the_bucket_is_stored_there(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    answer = local_gateway.infer("resnet", {"s3_key": "images/red.png"}).json()
    assert (len(answer["predictions"]), answer["predictions"][0]) == (5, "1.000000:0:0:tabby")
    key = "results/images/red.png_resnet_inference.json"
    rest = {"status": "success", "model": "resnet", "result_s3_key": key}
    assert answer == {**rest, "predictions": answer["predictions"]}
    assert (
        cloud.get(key).items() >= {"s3_key": "images/red.png", "predictions": answer["predictions"]}.items()
    )


def test_a_model_may_have_an_explicit_batch_of_one_and_without_a_client_returns_its_five_best_labels(
    local_gateway: Gateway,
) -> None:
    answer = local_gateway.infer("explicit", BLUE_PAYLOAD).json()
    assert (answer["result_s3_key"], len(answer["predictions"])) == (None, 5)
    assert answer["predictions"] == predict(local_gateway, "colours", BLUE_PAYLOAD)
    assert answer["predictions"][:2] == [
        {"label": "teapot", "index": 2, "score": 1.0},
        {"label": "comic book", "index": 5, "score": 0.5},
    ]
    tensor = np.zeros((3, 8, 8)).tolist()
    for nested_list in (tensor, [tensor]):
        rows = predict(local_gateway, "explicit", {"payload": {"tensor": nested_list}})
        assert [row["score"] for row in rows] == [0.0] * 5


def test_an_objects_type_comes_from_its_content_type_or_its_ending(local_gateway: Gateway) -> None:
    for key, score in (("zeros.npy", 0.0), ("whatever", 1.0)):
        assert predict(local_gateway, "colours", {"s3_key": f"images/{key}"})[0]["score"] == score
    assert predict(local_gateway, "words", {"s3_key": "images/words.json"}) == {"y": ["A", "B"]}


def test_parameters_and_version_of_the_caller_are_used(local_gateway: Gateway) -> None:
    body = {"s3_key": "images/red.png", "parameters": {"top": 1}, "version": "1"}
    assert predict(local_gateway, "resnet", body) == ["1.000000:0:0:tabby"]
    response = local_gateway.infer("resnet", {"s3_key": "images/red.png"}, params={"version": "7"})
    assert response.status_code == 400


def test_a_model_that_cannot_be_served_is_a_400_with_those_that_can(local_gateway: Gateway) -> None:
    codes = {
        "/infer/nobody": "unknown_model",
        "/load_model/nobody": "unknown_model",
        "/infer/waiting": "unknown_model",
        "/load_model/broken": "bad_input",
    }
    payload = {"payload": {"tensor": [1]}}
    responses = {path: local_gateway.request("POST", path, json=payload) for path in codes}
    assert {path: response.json()["code"] for path, response in responses.items()} == codes
    assert {response.status_code for response in responses.values()} == {400}
    for path in ("/infer/nobody", "/load_model/nobody"):
        assert set(MODELS) <= set(responses[path].json()["models"])
    assert "/load_model/waiting" in responses["/infer/waiting"].json()["error"]


JSON = "application/json"
REFUSED = [
    ("/infer/resnet", JSON, b"", 400, {"code": "bad_input"}),
    ("/infer/resnet", JSON, b"{", 400, {"code": "bad_input"}),
    ("/infer/resnet", JSON, b"{}", 400, {"field": "s3_key"}),
    ("/infer/resnet", JSON, b'{"s3_key": 7}', 400, {"field": "s3_key"}),
    ("/infer/resnet", JSON, b'{"s3_key": "images/none.png"}', 404, {}),
    ("/infer/resnet", JSON, b'{"s3_key": "models/resnet/labels.txt"}', 403, {"field": "s3_key"}),
    ("/infer/resnet", JSON, b'{"key": "images/red.png"}', 422, {"field": "key"}),
    ("/infer/resnet", JSON, b'{"payload": {"picture": "x"}}', 422, {"field": "payload.image"}),
    ("/infer/resnet", JSON, b'{"payload": {"image": "QUJD"}, "parameters": {"top": 0}}', 422, {"field": "parameters.top"}),
    ("/infer/resnet", JSON, b'{"payload": [], "version": "1"}', 422, {"field": "payload"}),
    ("/infer/resnet", JSON, b'{"payload": {}, "version": "x"}', 422, {"field": "version"}),
    ("/infer/resnet?version=%D9%A3", JSON, b'{"payload": {}}', 422, {"field": "version"}),
    ("/infer/resnet", "image/jpeg", b"{}", 415, {"code": "unsupported_content_type"}),
    ("/infer", JSON, b"{}", 404, {"code": "not_found"}),
    ("/models", JSON, b"{}", 405, {"code": "method_not_allowed"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "body", "status", "details"), REFUSED)
def test_a_bad_request_is_an_error_in_one_shape_with_its_field(
    local_gateway: Gateway, path: str, kind: str, body: bytes, status: int, details: dict[str, str]
) -> None:
    response = local_gateway.request("POST", path, data=body, headers={"Content-Type": kind})
    assert response.status_code == status, response.text
    assert {"error", "code", "request_id"} <= response.json().keys()
    assert response.json().items() >= details.items()


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


def test_a_key_is_required_and_no_key_is_ever_logged(local_gateway: Gateway) -> None:
    for method, path in (("GET", "/models"), ("POST", "/load_model/resnet"), ("POST", "/infer/resnet")):
        assert local_gateway.request(method, path, key=None, json={}).status_code == 401
        response = local_gateway.request(method, path, key="a-wrong-key", json={})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert local_gateway.request("GET", "/models").status_code == 200
    log = local_gateway.log.read_text()
    assert [key in log for key in ('"caller":"tests"', "a-wrong-key", "the-key-of-a-test")] == [
        True,
        False,
        False,
    ]
