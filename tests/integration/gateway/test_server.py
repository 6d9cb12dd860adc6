"""The gateway in its own server: the same app, with a time limit, bounded bodies and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.gateways import KEY, KEY_SHA256, FakeBucket, Gateway, environment, running_gateway_server
from tests.support.raw_http import exchange

HOST = b"Host: x\r\n"
POST = b"POST /infer/who HTTP/1.1\r\n" + HOST + f"x-api-key: {KEY}\r\n".encode()


def with_keys(line: str, *keys: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: x", *(f"x-api-key: {key}" for key in keys)]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


#: Requests by their name, with the status. The name is the test's: a megabyte of it would fit into no environment.
REFUSED = {
    "a key's hash": (with_keys("GET /models", KEY_SHA256), 403),
    "another method": (with_keys("DELETE /models", KEY), 405),
    "a path in a model's name": (with_keys("POST /infer/..%2fmodels", KEY), 404),
    "a right key and another": (with_keys("GET /models", KEY, "x"), 400),
    "another key and the right one": (with_keys("GET /models", "x", KEY), 400),
    "the right key twice": (with_keys("GET /models", KEY, KEY), 400),
    "a length over the setting": (POST + b"Content-Length: 200000\r\n\r\n", 413),
    "a length in words": (POST + b"Content-Length: ten\r\n\r\n", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "no HTTP": (b"GARBAGE\r\n\r\n", 400),
    "a header with a space": (b"GET /health HTTP/1.1\r\n" + HOST + b"Bad Header: x\r\n\r\n", 400),
    "a huge header": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 2**20 + b"\r\n\r\n", 431),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_is_refused_or_cannot_be_read_is_an_error_in_json(
    gateway_server: Gateway, name: str
) -> None:
    request, status = REFUSED[name]
    head, _, body = exchange(gateway_server.port, request).partition(b"\r\n\r\n")
    assert (int(head.split()[1]), b"application/json" in head) == (status, True)
    assert {"error", "code"} <= json.loads(body).keys()
    # Not /health, which waits for Triton.
    assert gateway_server.request("GET", "/nowhere").status_code == 404


def test_a_model_that_exceeds_the_time_limit_is_a_504(gateway_server: Gateway) -> None:
    response = gateway_server.infer("words", {"payload": {"tensor": ["4"]}})
    assert (response.status_code, response.json()["code"]) == (504, "deadline_passed")


def test_without_triton_health_and_inference_are_503_with_the_reason(
    cloud: FakeBucket, tmp_path: Path
) -> None:
    with running_gateway_server(tmp_path / "log", environment(cloud.address, "127.0.0.1:1")) as gateway:
        health = gateway.request("GET", "/health", key=None)
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert health.json()["reason"]
        for method, path in (("POST", "/infer/resnet"), ("GET", "/models"), ("POST", "/load_model/who")):
            response = gateway.request(method, path, json={"payload": {"image": ""}})
            assert (response.status_code, response.json()["code"]) == (503, "not_ready"), response.text
