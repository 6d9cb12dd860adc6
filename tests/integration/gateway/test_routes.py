"""The routes of ``chalice local``, with a bucket and two Tritons."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chalicelib.options import Options
from chalicelib.service import Service
from chalicelib.storage import Storage
from chalicelib.tritons import Tritons

from sm.router.answers import dumps
from tests.support.gateways import BLUE, BUCKET, MODELS, RED, FakeBucket, Gateway


def test_health_names_each_triton_and_needs_no_key(local_gateway: Gateway) -> None:
    response = local_gateway.request("GET", "/health", key=None)
    assert response.status_code == 200
    assert response.json()["status"] == "healthy"
    assert list(response.json()["tritons"].values()) == ["ready", "ready"]


def test_models_lists_those_of_the_bucket_and_those_loaded(local_gateway: Gateway) -> None:
    assert local_gateway.request("GET", "/models").json() == {
        "bucket": sorted(MODELS),
        "loaded": {name: ["1"] for name in sorted(MODELS)},
    }


def test_the_result_for_a_picture_in_the_bucket_is_stored_there(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    cloud.put("images/red.png", RED)
    response = local_gateway.infer("resnet", {"s3_key": "images/red.png"})
    assert response.status_code == 200, response.text
    body = response.json()
    assert {**body, "predictions": ...} == {
        "status": "success",
        "model": "resnet",
        "predictions": ...,
        "result_s3_key": "results/images/red.png_resnet_inference.json",
    }
    assert len(body["predictions"]) == 5
    assert body["predictions"][0] == "1.000000:0:0:tabby"
    stored = cloud.get(body["result_s3_key"])
    assert stored["predictions"] == body["predictions"]
    assert stored["s3_key"] == "images/red.png"


def test_a_model_without_a_client_returns_its_five_best_labels(local_gateway: Gateway) -> None:
    response = local_gateway.infer("colours", {"payload": {"image": base64.b64encode(BLUE).decode()}})
    assert response.status_code == 200, response.text
    assert response.json()["predictions"][:2] == [
        {"label": "teapot", "index": 2, "score": 1.0},
        {"label": "comic book", "index": 5, "score": 0.5},
    ]
    assert len(response.json()["predictions"]) == 5
    assert response.json()["result_s3_key"] is None


def test_a_model_may_have_an_explicit_batch_of_one(local_gateway: Gateway) -> None:
    predictions = [
        local_gateway.infer(name, {"payload": {"image": base64.b64encode(BLUE).decode()}}).json()[
            "predictions"
        ]
        for name in ("explicit", "colours")
    ]
    assert predictions[0] == predictions[1]
    tensor = np.zeros((3, 8, 8)).tolist()
    for nested_list in (tensor, [tensor]):
        response = local_gateway.infer("explicit", {"payload": {"tensor": nested_list}})
        assert [row["score"] for row in response.json()["predictions"]] == [0.0] * 5


def test_infer_without_a_model_is_a_404(local_gateway: Gateway) -> None:
    response = local_gateway.request("POST", "/infer", json={})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_an_objects_type_comes_from_its_content_type_or_its_ending(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros((3, 8, 8), np.float32))
    cloud.put("images/zeros.npy", stream.getvalue())
    cloud.put("images/whatever", RED, ContentType="image/png")
    cloud.put("images/words.json", b'{"tensor": ["a", "b"]}')
    responses = [
        local_gateway.infer("colours", {"s3_key": key}).json()
        for key in ("images/zeros.npy", "images/whatever")
    ]
    assert [response["predictions"][0]["score"] for response in responses] == [0.0, 1.0]
    assert local_gateway.infer("words", {"s3_key": "images/words.json"}).json()["predictions"] == {
        "y": ["A", "B"]
    }


def test_parameters_and_version_of_the_caller_are_used(local_gateway: Gateway, cloud: FakeBucket) -> None:
    cloud.put("images/red.png", RED)
    body = {"s3_key": "images/red.png", "parameters": {"top": 1}, "version": "1"}
    assert local_gateway.infer("resnet", body).json()["predictions"] == ["1.000000:0:0:tabby"]
    response = local_gateway.request("POST", "/infer/resnet?version=7", json={"s3_key": "images/red.png"})
    assert response.status_code == 400


def test_an_unknown_model_is_a_400_that_lists_the_others(local_gateway: Gateway) -> None:
    response = local_gateway.infer("nobody", {"payload": {"tensor": [1]}})
    assert response.status_code == 400
    assert response.json()["models"] == sorted(MODELS)
    assert response.json()["code"] == "unknown_model"
    load_response = local_gateway.request("POST", "/load_model/nobody")
    assert load_response.status_code == 400
    assert load_response.json()["models"] == sorted(MODELS)


def test_a_model_that_is_not_loaded_is_a_400_that_says_how_to_load_it(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    cloud.put("models/waiting/config.pbtxt", b"")
    try:
        response = local_gateway.infer("waiting", {"payload": {"tensor": [1]}})
    finally:
        cloud.s3.delete_object(Bucket=BUCKET, Key="models/waiting/config.pbtxt")
    assert response.status_code == 400
    assert "POST /load_model/waiting" in response.json()["error"]


def test_a_model_that_triton_cannot_load_is_a_400_with_its_reason(
    local_gateway: Gateway, cloud: FakeBucket
) -> None:
    cloud.put("models/broken/config.pbtxt", b"backend: 'python' nonsense")
    cloud.put("models/broken/1/model.py", b"raise ValueError('no such luck')")
    try:
        response = local_gateway.request("POST", "/load_model/broken")
    finally:
        for key in ("config.pbtxt", "1/model.py"):
            cloud.s3.delete_object(Bucket="trireme-test", Key=f"models/broken/{key}")
    assert (response.status_code, response.json()["code"]) == (400, "bad_input"), response.text


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"{}", 400, "s3_key"),
        (b'{"s3_key": "images/x", "payload": 1}', 400, "s3_key"),
        (b'{"s3_key": 7}', 400, "s3_key"),
        (b'{"s3_key": ""}', 400, "s3_key"),
        (b'{"s3_key": "images/none.png"}', 404, None),
        (b'{"s3_key": "images/../models/resnet/labels.txt"}', 400, "s3_key"),
        (b'{"s3_key": "models/resnet/labels.txt"}', 403, "s3_key"),
        (b'{"s3_key": "results/images/red.png_resnet_inference.json"}', 403, "s3_key"),
        (b'{"key": "images/red.png"}', 422, "key"),
        (b'{"payload": {"image": "!"}}', 400, "payload.image"),
        (b'{"payload": {"picture": "x"}}', 422, "payload.image"),
        (b'{"payload": {"image": "QUJD"}}', 400, None),
        (b'{"payload": {"image": "QUJD"}, "parameters": {"top": 0}}', 422, "parameters.top"),
        (b'{"payload": [], "version": "1"}', 422, "payload"),
        (b'{"payload": {}, "version": "x"}', 422, "version"),
    ],
)
def test_a_bad_request_is_an_error_with_its_field(
    local_gateway: Gateway, body: bytes, status: int, field: str | None
) -> None:
    response = local_gateway.request(
        "POST", "/infer/resnet", data=body, headers={"Content-Type": "application/json"}
    )
    assert (response.status_code, response.json().get("field")) == (status, field), response.text
    assert {"error", "code", "request_id"} <= response.json().keys()


def test_concurrent_first_requests_all_get_a_complete_client(
    gateway_env: dict[str, str], cloud: FakeBucket, local_gateway: Gateway
) -> None:
    options = Options.read(gateway_env)
    tritons = Tritons(options.peers, 60)
    service = Service(options, Storage(BUCKET, 2**20, cloud.s3), tritons)
    body = dumps({"payload": {"image": base64.b64encode(RED).decode()}})
    with ThreadPoolExecutor(8) as executor:
        answers = list(executor.map(lambda _: service.infer("colours", body, "", "id"), range(16)))
    tritons.close()
    assert {answer["predictions"][0]["label"] for answer in answers} == {"tabby"}


def test_errors_of_chalice_itself_have_the_same_shape(local_gateway: Gateway) -> None:
    response = local_gateway.request("GET", "/infer/resnet")
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    image_response = local_gateway.request(
        "POST", "/infer/resnet", data=b"x", headers={"Content-Type": "image/jpeg"}
    )
    assert (image_response.status_code, image_response.json()["code"]) == (415, "unsupported_content_type")


def test_a_key_is_required_and_no_key_is_ever_logged(local_gateway: Gateway) -> None:
    for path in ("/models", "/load_model/resnet", "/infer/resnet"):
        method = "GET" if path == "/models" else "POST"
        assert local_gateway.request(method, path, key=None, json={}).status_code == 401
        response = local_gateway.request(method, path, key="a-wrong-key", json={})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert local_gateway.request("GET", "/models").status_code == 200
    log = local_gateway.log.read_text()
    assert '"caller":"tests"' in log
    assert "a-wrong-key" not in log
    assert "the-key-of-a-test" not in log
