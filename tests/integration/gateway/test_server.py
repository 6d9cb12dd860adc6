"""The gateway in its own server: the same app, its time, its cache, its failures."""

from __future__ import annotations

import base64
import socket

import pytest

from tests.support.gateway_requests import RED
from tests.support.gateways import HASH, KEY, Cloud, Gateway


def test_the_same_app_answers(server: Gateway, cloud: Cloud) -> None:
    cloud.put("images/red.png", RED)
    assert server.ask("GET", "/health", key=None).json()["status"] == "healthy"
    response = server.infer("resnet", {"s3_key": "images/red.png"})
    assert response.json()["predictions"][0] == "1.000000:0:0:tabby"
    assert cloud.get(response.json()["result_s3_key"])["model"] == "resnet"


def test_keys_paths_and_methods_are_checked_here_too(server: Gateway) -> None:
    assert server.ask("GET", "/models", key=None).json()["code"] == "unauthorized"
    assert server.ask("GET", "/models", key=HASH).json()["code"] == "forbidden"
    assert server.ask("GET", "/nowhere").json()["code"] == "not_found"
    assert server.ask("DELETE", "/models").json()["code"] == "method_not_allowed"
    assert server.ask("POST", "/infer/..%2fmodels", json={}).status_code in (400, 404)


def test_a_model_that_takes_longer_than_there_is_time_is_a_504(server: Gateway) -> None:
    response = server.infer("words", {"payload": {"tensor": ["4"]}})
    assert (response.status_code, response.json()["code"]) == (504, "deadline_passed")


def test_the_same_content_is_answered_from_memory(server: Gateway) -> None:
    def answering_process(number: float) -> int:
        response = server.infer("who", {"payload": {"tensor": [number]}})
        assert response.status_code == 200, response.text
        return int(response.json()["predictions"]["y"][0])

    # Two Tritons take turns; one who remembers does not ask them.
    assert len({answering_process(1) for _ in range(6)}) == 1
    assert len({answering_process(number) for number in range(2, 8)}) == 2


def test_nothing_is_remembered_unless_it_is_asked_for(local: Gateway) -> None:
    responses = [
        local.infer("who", {"payload": {"tensor": [0]}}).json()["predictions"]["y"] for _ in range(6)
    ]
    assert len({response[0] for response in responses}) == 2


def test_without_triton_health_is_503_with_the_reason_and_so_is_an_inference(lost: Gateway) -> None:
    health = lost.ask("GET", "/health", key=None)
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert health.json()["reason"] == "Triton does not answer"
    for response in (
        lost.infer("resnet", {"payload": {"image": base64.b64encode(RED).decode()}}),
        lost.ask("GET", "/models"),
        lost.ask("POST", "/load_model/who"),
    ):
        assert (response.status_code, response.json()["code"]) == (503, "not_ready"), response.text


def test_a_body_or_an_object_over_the_limit_is_a_413(server: Gateway, cloud: Cloud) -> None:
    cloud.put("images/large.png", bytes(200_000))
    for body in ({"payload": {"image": "A" * 200_000}}, {"s3_key": "images/large.png"}):
        response = server.infer("colours", body)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("length", ["1000000000", "ten"])
def test_a_body_of_an_impossible_length_is_refused_unread(server: Gateway, length: str) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"POST /infer/who HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(100).split()[1] in (b"413", b"400")
