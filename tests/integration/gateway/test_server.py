"""The gateway in its own server: the same app, with a time limit, a cache and failures."""

from __future__ import annotations

import base64
import json
import socket

import pytest

from tests.support.gateways import KEY, KEY_SHA256, RED, FakeBucket, Gateway
from tests.support.raw_http import exchange


def test_the_server_checks_keys_paths_and_methods(gateway_server: Gateway) -> None:
    assert gateway_server.request("GET", "/models", key=None).json()["code"] == "unauthorized"
    assert gateway_server.request("GET", "/models", key=KEY_SHA256).json()["code"] == "forbidden"
    assert gateway_server.request("GET", "/nowhere").json()["code"] == "not_found"
    assert gateway_server.request("DELETE", "/models").json()["code"] == "method_not_allowed"
    assert gateway_server.request("POST", "/infer/..%2fmodels", json={}).status_code in (400, 404)


def test_two_keys_are_a_400_whichever_is_right(gateway_server: Gateway) -> None:
    port = gateway_server.url.rpartition(":")[2]
    for first, second in ((KEY, "x"), ("x", KEY), (KEY, KEY)):
        lines = f"Host: x\r\nx-api-key: {first}\r\nX-Api-Key: {second}\r\nConnection: close"
        answer = exchange(int(port), f"GET /models HTTP/1.1\r\n{lines}\r\n\r\n".encode())
        assert answer.split()[1] == b"400", answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "bad_input"


def test_a_model_that_exceeds_the_time_limit_is_a_504(gateway_server: Gateway) -> None:
    response = gateway_server.infer("words", {"payload": {"tensor": ["4"]}})
    assert (response.status_code, response.json()["code"]) == (504, "deadline_passed")


def test_by_default_answers_are_not_cached(local_gateway: Gateway) -> None:
    responses = [
        local_gateway.infer("who", {"payload": {"tensor": [0]}}).json()["predictions"]["y"] for _ in range(6)
    ]
    assert len({response[0] for response in responses}) == 2


def test_without_triton_health_and_inference_are_503_with_the_reason(gateway_without_triton: Gateway) -> None:
    health = gateway_without_triton.request("GET", "/health", key=None)
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert health.json()["reason"]
    for response in (
        gateway_without_triton.infer("resnet", {"payload": {"image": base64.b64encode(RED).decode()}}),
        gateway_without_triton.request("GET", "/models"),
        gateway_without_triton.request("POST", "/load_model/who"),
    ):
        assert (response.status_code, response.json()["code"]) == (503, "not_ready"), response.text


def test_a_body_or_an_object_over_the_limit_is_a_413(gateway_server: Gateway, cloud: FakeBucket) -> None:
    cloud.put("images/large.png", bytes(200_000))
    for body in ({"payload": {"image": "A" * 200_000}}, {"s3_key": "images/large.png"}):
        response = gateway_server.infer("colours", body)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("length", ["1000000000", "ten"])
def test_a_body_of_an_invalid_length_is_refused_unread(gateway_server: Gateway, length: str) -> None:
    host, port = gateway_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"POST /infer/who HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(100).split()[1] in (b"413", b"400")
