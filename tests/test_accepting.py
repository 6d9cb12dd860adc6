"""A worker's threads behind nginx: each goes on, whatever a client does, and connections are not cut short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.box.running import RunningBox, running
from tests.triton.serving import MODELS

LEAVES = """
import sys
from sm.base import Client, TextPayload

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
    with running(
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


def test_an_answer_comes_whole_although_the_body_was_not_read(box: RunningBox) -> None:
    answer = requests.post(f"{box.url}/nowhere", data=b"x" * 2_000_000, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
