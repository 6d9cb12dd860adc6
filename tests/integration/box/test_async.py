"""Asynchronous endpoints: no part of the box cuts a request off after 30 or 60 seconds."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import MODELS

CLIENTS = CLIENT_FOLDERS / "patient"
#: Longer than the default time-outs of gunicorn, nginx and the box, which are a minute or less.
LONG_S = 63
SLOW_MODEL_REQUEST = {
    "inputs": [
        {"name": "seconds", "datatype": "FP32", "shape": [1, 1], "data": [LONG_S]},
        {"name": "size", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
}


def request_body(stage: str) -> bytes:
    return json.dumps({"modelname": "patient", "payload": {"seconds": LONG_S, "how": stage}}).encode()


@pytest.mark.exhaustive
def test_a_request_may_take_longer_than_a_minute_in_any_part_of_the_box(tmp_path: Path) -> None:
    MODELS["slow"].write(tmp_path / "model" / "slow")
    config = tmp_path / "model" / "slow" / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group [{count: 2, kind: KIND_CPU}]\n")
    (tmp_path / "notes").mkdir()
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(CLIENTS,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="patient",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="3600",
        SAGEMAKER_MODEL_SERVER_WORKERS="3",
    ) as box:

        def post(path: str, body: bytes) -> requests.Response:
            headers = {"Content-Type": "application/json"}
            return requests.post(box.url + path, data=body, headers=headers, timeout=300)

        with ThreadPoolExecutor(4) as executor:
            client_responses = {
                stage: executor.submit(post, "/invocations", request_body(stage))
                for stage in ("locked", "asleep", "triton")
            }
            triton_response = executor.submit(
                post, "/v2/models/slow/infer", json.dumps(SLOW_MODEL_REQUEST).encode()
            )
            for stage, response in client_responses.items():
                assert response.result().json().get("result") == stage, response.result().text
            assert triton_response.result().status_code == 200, triton_response.result().text
        assert has_no_worker_timeout(box)


def has_no_worker_timeout(box: RunningBox) -> bool:
    return "WORKER TIMEOUT" not in box.log.read_text()
