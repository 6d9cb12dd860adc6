"""A request that gunicorn cannot parse gets a JSON error of the contract's shape, also without nginx."""

from __future__ import annotations

import json
import select
import socket
from contextlib import ExitStack

import pytest
import requests

from tests.support.boxes import RunningBox

#: More connections than the box has threads: 64, as Settings.max_threads computes.
MANY = 70
POST = b"POST /invocations HTTP/1.1\r\nHost: box\r\n"


@pytest.fixture
def box(box_without_nginx: RunningBox) -> RunningBox:
    return box_without_nginx


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
    with connect(box) as connection:
        connection.sendall(head + b"\r\n")
        assert_error(connection, status, code)
    assert box.ping()[0] == 200


def connect(box: RunningBox) -> socket.socket:
    return socket.create_connection(("127.0.0.1", box.port), timeout=60)


def assert_error(connection: socket.socket, status: int, code: str) -> None:
    """Read the answer until the box closes the connection."""
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.split()[1] == str(status).encode()
    assert b"Content-Type: application/json" in top
    said = json.loads(body)
    assert (said["code"], bool(said["request_id"])) == (code, True)


@pytest.mark.parametrize(
    "start",
    [
        POST,
        POST + b"Content-Length: 1000000\r\n\r\n",
        POST + b"Content-Length: 1000\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n",
    ],
    ids=["head", "large", "small", "chunked"],
)
def test_a_request_that_stalls_is_a_408_and_gives_its_thread_back(box: RunningBox, start: bytes) -> None:
    callers = [connect(box) for _ in range(MANY)]
    for caller in callers:
        caller.sendall(start)
    for caller in callers:
        assert_error(caller, 408, "request_timeout")
        caller.close()
    assert box.send(b"{}").status_code == 422


def test_refused_callers_that_do_not_close_hold_up_nobody(box: RunningBox) -> None:
    """gunicorn waits two seconds for each of them; in the thread that accepts callers that would be a minute."""
    with ExitStack() as stack:
        callers = [stack.enter_context(connect(box)) for _ in range(30)]
        for caller in callers:
            caller.sendall(b"nonsense\r\n\r\n")
        for caller in callers:
            caller.settimeout(30)
            assert caller.recv(12) == b"HTTP/1.1 400"
        assert requests.post(f"{box.url}/invocations", data=b"{}", timeout=30).status_code == 422


def test_a_body_that_comes_byte_by_byte_is_a_408(box: RunningBox) -> None:
    with connect(box) as caller:
        caller.sendall(POST + b"Content-Length: 1000000\r\n\r\n")
        caller.sendall(b" ")
        while not select.select([caller], [], [], 0.3)[0]:
            caller.sendall(b" ")
        assert_error(caller, 408, "request_timeout")
