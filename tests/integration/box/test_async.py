"""Asynchronous endpoints: no part of the box cuts a request off after 30 or 60 seconds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.tritons import MODELS, Model

#: Longer than the default time-outs of gunicorn, nginx and the box, which are a minute or less.
LONG_S = 63
SLOW_MODEL_REQUEST = {
    "inputs": [
        {"name": "seconds", "datatype": "FP32", "shape": [1, 1], "data": [LONG_S]},
        {"name": "size", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
}


@dataclass(frozen=True)
class TwoInstances(Model):
    def config(self) -> str:
        return f"{super().config()}instance_group [{{count: 2, kind: KIND_CPU}}]\n"


@pytest.mark.exhaustive
def test_a_request_may_take_longer_than_a_minute_in_any_part_of_the_box(boxes: Boxes) -> None:
    slow = MODELS["slow"]
    with boxes.own(
        {"slow": TwoInstances(slow.answer, slow.inputs, slow.outputs, slow.max_batch_size)},
        ("patient",),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="patient",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="3600",
        SAGEMAKER_MODEL_SERVER_WORKERS="3",
    ) as box:

        def post(path: str, body: object) -> requests.Response:
            return requests.post(box.url + path, json=body, timeout=300)

        workers, stages = box.workers(), ("locked", "asleep", "triton")
        with ThreadPoolExecutor(4) as executor:
            bodies = [
                {"modelname": "patient", "payload": {"seconds": LONG_S, "how": stage}} for stage in stages
            ]
            answers = [executor.submit(post, "/invocations", body) for body in bodies]
            of_triton = executor.submit(post, "/v2/models/slow/infer", SLOW_MODEL_REQUEST).result()
        assert [answer.result().json().get("result") for answer in answers] == list(stages)
        assert of_triton.status_code == 200, of_triton.text
        assert box.workers() == workers
