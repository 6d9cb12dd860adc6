"""Behind nginx no connection of a worker is cut short."""

from __future__ import annotations

import socket
import time

import pytest
import requests

from sm.run_state import Box
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, demo

__all__ = ["box", "demo"]


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
