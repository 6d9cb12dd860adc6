"""The workers' threads behind nginx: each goes on, whatever a client does, and connections are not cut short."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sm.run_state import Box
from tests.support.boxes import RunningBox, running_box
from tests.support.tritons import MODELS

LEAVES = """
import sys
from sm.client.base import Client, TextPayload

class Leaves(Client):
    payload = TextPayload

    def inference(self, payload):
        if payload.text == "leave":
            sys.exit()
        return len(payload.text)
"""
ASKED = "invocations?modelname=leaves"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with nginx, whose one worker has two threads."""
    folder = tmp_path_factory.mktemp("accepting")
    MODELS["echo"].write(folder / "model" / "echo")
    client: Path = folder / "clients" / "leaves" / "client.py"
    client.parent.mkdir(parents=True)
    client.write_text(LEAVES)
    with running_box(
        folder,
        folder / "model",
        clients=(folder / "clients",),
        MODEL_SERVER_WORKERS="1",
        TRIREME_THREADS="2",
    ) as started:
        yield started


def ask(box: RunningBox, text: str) -> requests.Response:
    return requests.post(
        f"{box.url}/{ASKED}", data=text.encode(), headers={"Content-Type": "text/plain"}, timeout=20
    )


def test_a_client_that_leaves_takes_no_thread_with_it(box: RunningBox) -> None:
    assert [ask(box, "leave").status_code for _ in range(4)] == [500] * 4
    assert [ask(box, "stay").json()["result"] for _ in range(4)] == [4] * 4
    assert box.ping()[0] == 200


@pytest.mark.parametrize(
    ("path", "expected"), [("nowhere", (404, "not_found")), ("models", (413, "too_large"))]
)
def test_an_answer_comes_whole_although_the_body_was_not_read(
    box: RunningBox, path: str, expected: tuple[int, str]
) -> None:
    answer = requests.post(f"{box.url}/{path}", data=b"x" * 20_000_000, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == expected


@pytest.mark.parametrize(
    ("plane", "path", "status"), [("data", "nowhere", b" 404 "), ("control", "models", b" 405 ")]
)
def test_who_is_still_sending_when_the_answer_comes_may_go_on(
    box: RunningBox, plane: str, path: str, status: bytes
) -> None:
    piece, pieces = b"x" * 2**17, 16
    with socket.socket(socket.AF_UNIX) as nginx:
        nginx.settimeout(20)
        nginx.connect(str(getattr(Box.load(box.run_folder()), f"{plane}_socket")))
        nginx.sendall(f"POST /{path} HTTP/1.1\r\nContent-Length: {len(piece) * pieces}\r\n\r\n".encode())
        answer = nginx.recv(4096)
        assert status in answer
        for _ in range(pieces):
            time.sleep(0.01)
            nginx.sendall(piece)
        while more := nginx.recv(4096):
            answer += more
    assert answer.endswith(b"}")
