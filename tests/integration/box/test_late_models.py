"""A worker that starts before Triton serves a model offers its client as soon as the model is ready."""

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


OTHER = """
from sm.client import Client


class Other(Client):
    def inference(self, payload):
        return "served"
"""


def control_model(box: RunningBox, verb: str) -> None:
    """Make Triton load or unload the model."""
    state = Box.load(box.run_folder())
    url = f"http://127.0.0.1:{state.http_port}/v2/repository/models/echo/{verb}"
    assert requests.post(url, headers=dict(state.http_keys), json={}, timeout=60).ok


def worker_statuses(box: RunningBox) -> set[int]:
    """Invoke the client often enough to reach every worker; return the statuses."""
    return {box.invoke("late", {"text": "a"}).status_code for _ in range(8 * WORKERS)}


@pytest.mark.parametrize("arguments", ["", "--reload"])
def test_a_worker_that_starts_without_its_model_serves_it_later(tmp_path: Path, arguments: str) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "late.py").write_text(CLIENT)
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(tmp_path / "clients",),
        arguments=arguments,
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=explicit --load-model=*",
        TRIREME_BROKEN_CLIENTS="skip",
    ) as box:
        assert worker_statuses(box) == {200}
        control_model(box, "unload")
        workers_before = box.wait_for_workers(WORKERS)
        os.kill(workers_before[0], signal.SIGKILL)
        wait_until(lambda: set(box.workers()) - set(workers_before), description="a new worker")
        # It looked for the model, did not find it, and therefore does not serve the client.
        wait_until(lambda: worker_statuses(box) != {200}, description="the new worker's answer")
        control_model(box, "load")
        wait_until(lambda: worker_statuses(box) == {200}, description="the client in every worker")


@pytest.mark.parametrize("killed", ["worker", "master"])
def test_a_restart_without_a_model_does_not_end_a_box_that_serves_others(tmp_path: Path, killed: str) -> None:
    """Only at the start of the box a client without its model is the end."""
    MODELS["echo"].write(tmp_path / "model" / "echo")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "late.py").write_text(CLIENT)
    (tmp_path / "clients" / "other.py").write_text(OTHER)
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(tmp_path / "clients",),
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=explicit --load-model=*",
        TRIREME_BROKEN_CLIENTS="stop",
        TRIREME_RESTARTS="2",
    ) as box:
        assert worker_statuses(box) == {200}
        control_model(box, "unload")
        if killed == "master":
            box.kill_and_wait_for_restart("data")
        else:
            workers_before = box.wait_for_workers(WORKERS)
            os.kill(workers_before[0], signal.SIGKILL)
            wait_until(lambda: set(box.workers()) - set(workers_before), description="a new worker")
        wait_until(lambda: worker_statuses(box) != {200}, description="the new worker's answer")
        assert {box.invoke("other", {}).status_code for _ in range(8 * WORKERS)} == {200}
        control_model(box, "load")
        wait_until(lambda: worker_statuses(box) == {200}, description="answers of all workers")
        assert box.child("data")["restarts"] == (killed == "master")
