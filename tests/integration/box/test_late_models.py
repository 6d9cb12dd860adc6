"""A worker that starts before Triton serves a model offers its client as soon as the model is ready."""

from __future__ import annotations

import os
import signal

import pytest
import requests

from sm.run_state import Box
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until

CLIENT = """
from sm.client import Client, TextPayload


class Late(Client):
    payload, models = TextPayload, ("echo",)

    def inference(self, payload):
        return payload.text.upper()
"""
OTHER = """
from sm.client import Client


class Other(Client):
    def inference(self, payload):
        return "served"
"""
WORKERS = 2


def control_model(box: RunningBox, verb: str) -> None:
    """Make Triton load or unload the model."""
    state = Box.load(box.run_folder())
    url = f"http://127.0.0.1:{state.http_port}/v2/repository/models/echo/{verb}"
    assert requests.post(url, headers=dict(state.http_keys), json={}, timeout=60).ok


def worker_statuses(box: RunningBox) -> set[int]:
    """Invoke the client often enough to reach every worker; return the statuses."""
    return {box.invoke("late", {"text": "a"}).status_code for _ in range(8 * WORKERS)}


def kill_a_worker(box: RunningBox) -> None:
    """Kill a worker and wait for the next one."""
    before = box.wait_for_workers(WORKERS)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: set(box.workers()) - set(before), description="a new worker")


@pytest.mark.parametrize(
    ("arguments", "broken_clients"),
    [("", "stop"), pytest.param("--reload", "skip", marks=pytest.mark.exhaustive)],
)
def test_a_restart_without_a_model_ends_no_box_and_its_client_is_served_when_it_is_there(
    boxes: Boxes, arguments: str, broken_clients: str
) -> None:
    """Only at the start of the box a client without its model is the end."""
    with boxes.own(
        ("echo",),
        ({"late.py": CLIENT, "other.py": OTHER},),
        arguments=arguments,
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=explicit --load-model=*",
        TRIREME_BROKEN_CLIENTS=broken_clients,
        TRIREME_RESTARTS="2",
    ) as box:
        assert worker_statuses(box) == {200}
        for killed in ("worker", "master"):
            control_model(box, "unload")
            if killed == "master":
                box.kill_and_wait_for_restart("data")
            else:
                kill_a_worker(box)
            # It looked for the model, did not find it, and therefore does not serve the client.
            wait_until(lambda: worker_statuses(box) != {200}, description="the new worker's answer")
            assert {box.invoke("other", {}).status_code for _ in range(8 * WORKERS)} == {200}
            control_model(box, "load")
            wait_until(lambda: worker_statuses(box) == {200}, description="the client in every worker")
        assert box.child("data")["restarts"] == 1
