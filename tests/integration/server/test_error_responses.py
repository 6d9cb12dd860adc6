"""A request that gunicorn cannot parse gets a JSON error of the contract's shape, also without nginx."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.support.boxes import RunningBox, running_box
from tests.support.tritons import MODELS

POST = b"POST /invocations HTTP/1.1\r\nHost: box\r\n"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box without nginx."""
    folder = tmp_path_factory.mktemp("box")
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder, folder / "model", clients=(), TRIREME_NGINX="off", MODEL_SERVER_WORKERS="1"
    ) as box:
        yield box


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (POST + b"Content-Length: 34\r\nContent-Length: 35\r\n", 400, "bad_input"),
        (POST + b"Content-Length: 34\r\nTransfer-Encoding: chunked\r\n", 400, "bad_input"),
        (POST + b"no header\r\n", 400, "bad_input"),
        (b"nonsense\r\n", 400, "bad_input"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n", 414, "bad_input"),
        (POST + b"X-Long: " + b"x" * 70_000 + b"\r\n", 431, "bad_input"),
        (POST + b"Transfer-Encoding: rot13\r\n", 501, "not_implemented"),
    ],
)
def test_a_request_that_cannot_be_parsed_is_a_json_error_and_the_box_lives_on(
    box: RunningBox, head: bytes, status: int, code: str
) -> None:
    with socket.create_connection(("127.0.0.1", box.port), timeout=10) as connection:
        connection.sendall(head + b"\r\n")
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
    response_head, _, body = response.partition(b"\r\n\r\n")
    assert response_head.split()[1] == str(status).encode()
    assert b"Content-Type: application/json" in response_head
    error = json.loads(body)
    assert (error["code"], bool(error["request_id"])) == (code, True)
    assert box.ping()[0] == 200
