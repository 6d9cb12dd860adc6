"""An asynchronous endpoint's hour: no time-out of a minute, or of 30 s, hides in any part of the box."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import MODELS

CLIENTS = CLIENT_FOLDERS / "patient"
#: Seconds; more than the minute that gunicorn, nginx and the box itself give by default.
LONG = 63
V2 = {
    "inputs": [
        {"name": "seconds", "datatype": "FP32", "shape": [1, 1], "data": [LONG]},
        {"name": "size", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
}


def request_body(how: str) -> bytes:
    return json.dumps({"modelname": "patient", "payload": {"seconds": LONG, "how": how}}).encode()


@pytest.mark.exhaustive
def test_a_request_may_take_longer_than_a_minute_wherever_it_spends_it(tmp_path: Path) -> None:
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

        def ask(path: str, body: bytes) -> requests.Response:
            kind = {"Content-Type": "application/json"}
            return requests.post(box.url + path, data=body, headers=kind, timeout=300)

        with ThreadPoolExecutor(4) as pool:
            answers = {
                how: pool.submit(ask, "/invocations", request_body(how))
                for how in ("locked", "asleep", "triton")
            }
            passed = pool.submit(ask, "/v2/models/slow/infer", json.dumps(V2).encode())
            for how, answer in answers.items():
                assert answer.result().json().get("result") == how, answer.result().text
            assert passed.result().status_code == 200, passed.result().text
        assert no_worker_was_lost(box)


def no_worker_was_lost(box: RunningBox) -> bool:
    return "WORKER TIMEOUT" not in box.log.read_text()
