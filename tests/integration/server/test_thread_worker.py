"""The workers' threads behind nginx survive every client, and no connection is cut short."""

from __future__ import annotations

import socket
import time

import pytest
import requests

from sm.run_state import Box
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox

EXITING_CLIENT = """
import sys
from sm.client import Client, TextPayload

class Leaves(Client):
    payload = TextPayload

    def inference(self, payload):
        if payload.text == "leave":
            sys.exit()
        return len(payload.text)
"""
PATH = "invocations?modelname=leaves"


@pytest.fixture
def box(boxes: Boxes) -> RunningBox:
    """A box with nginx, whose one worker has two threads."""
    clients = {"leaves/client.py": EXITING_CLIENT}
    return boxes(("echo",), (clients,), MODEL_SERVER_WORKERS="1", TRIREME_THREADS="2")


def post_text(box: RunningBox, text: str) -> requests.Response:
    return requests.post(
        f"{box.url}/{PATH}", data=text.encode(), headers={"Content-Type": "text/plain"}, timeout=20
    )


def test_a_client_that_calls_sys_exit_does_not_end_its_thread(box: RunningBox) -> None:
    assert [post_text(box, "leave").status_code for _ in range(4)] == [500] * 4
    assert [post_text(box, "stay").json()["result"] for _ in range(4)] == [4] * 4
    assert box.ping()[0] == 200


@pytest.mark.parametrize(
    ("path", "expected"), [("nowhere", (404, "not_found")), ("models", (413, "too_large"))]
)
def test_a_response_is_complete_although_the_body_was_not_read(
    box: RunningBox, path: str, expected: tuple[int, str]
) -> None:
    response = requests.post(f"{box.url}/{path}", data=b"x" * 20_000_000, timeout=20)
    assert (response.status_code, response.json()["code"]) == expected


@pytest.mark.parametrize(
    ("plane", "path", "status"), [("data", "nowhere", b" 404 "), ("control", "models", b" 405 ")]
)
def test_a_caller_may_go_on_sending_after_the_response(
    box: RunningBox, plane: str, path: str, status: bytes
) -> None:
    chunk, chunks = b"x" * 2**17, 16
    with socket.socket(socket.AF_UNIX) as nginx:
        nginx.settimeout(20)
        nginx.connect(str(getattr(Box.load(box.run_folder()), f"{plane}_socket")))
        nginx.sendall(f"POST /{path} HTTP/1.1\r\nContent-Length: {len(chunk) * chunks}\r\n\r\n".encode())
        response = nginx.recv(4096)
        assert status in response
        for _ in range(chunks):
            time.sleep(0.01)
            nginx.sendall(chunk)
        while part := nginx.recv(4096):
            response += part
    assert response.endswith(b"}")
