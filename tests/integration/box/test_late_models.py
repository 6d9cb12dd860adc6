"""A worker that starts while Triton does not serve a model: its client is there as soon as the model is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import requests

from sm.run_state import Box
from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.tritons import MODELS

CLIENT = """
from sm.client import Client, TextPayload


class Late(Client):
    payload, models = TextPayload, ("echo",)

    def inference(self, payload):
        return payload.text.upper()
"""
WORKERS = 2


def control(box: RunningBox, verb: str) -> None:
    """Make Triton load or unload the model."""
    told = Box.load(box.run_folder())
    url = f"http://127.0.0.1:{told.http_port}/v2/repository/models/echo/{verb}"
    assert requests.post(url, headers=dict(told.http_keys), json={}, timeout=60).ok


def statuses(box: RunningBox) -> set[int]:
    """What the workers answer; often enough for each to be asked."""
    return {box.invoke("late", {"text": "a"}).status_code for _ in range(8 * WORKERS)}


@pytest.mark.parametrize("words", ["", "--reload"])
def test_a_worker_that_starts_without_its_model_serves_it_later(tmp_path: Path, words: str) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "late.py").write_text(CLIENT)
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(tmp_path / "clients",),
        arguments=words,
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=explicit --load-model=*",
        TRIREME_BROKEN_CLIENTS="skip",
    ) as box:
        assert statuses(box) == {200}
        control(box, "unload")
        before = set(box.pids("sm.server.worker data"))
        # The arbiter has the lowest pid, its workers come after it.
        os.kill(max(before), signal.SIGKILL)
        wait_until(
            lambda: len(set(box.pids("sm.server.worker data")) - before) == 1, description="a new worker"
        )
        # It has looked for its model: without one, it does not serve the client.
        wait_until(lambda: statuses(box) != {200}, description="the new worker's answer")
        control(box, "load")
        wait_until(lambda: statuses(box) == {200}, description="answers of all workers")
