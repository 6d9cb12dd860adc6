"""A model's own failure is a 500 on every way in, and a caller's wrong input a 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.tritons import Model

#: Fails with the code of its input, or raises.
EXECUTE = """
    def execute(self, requests):
        return [self.fail(tensor(request, "x").ravel()[0]) for request in requests]

    def fail(self, number):
        if number == 1:
            raise ValueError("it fails")
        codes = {2: pb.TritonError.INTERNAL, 3: pb.TritonError.UNAVAILABLE, 4: pb.TritonError.UNSUPPORTED}
        error = pb.TritonError("the database is away", codes[int(number)]) if number in codes else pb.TritonError("away")
        return pb.InferenceResponse([], error=error)
"""
X: Any = {"x": ("FP32", [2])}
Y: Any = {"y": ("FP32", [2])}
MODELS = {
    "fails": Model("return {}", X, Y, execute=EXECUTE),
    "works": Model('return {"y": tensor(request, "x")}', X, Y),
}
#: What the model does not get: Triton refuses it.
WRONG: list[Any] = [
    {},
    {"x": [5]},
    {"x": "a"},
    {"x": [5, "a"]},
    {"x": [[5, 1]]},
    {"x": [5, 1], "sequence_id": [1]},
    [],
]
GENERATE = ("/v2/models/{}/generate", "/v2/models/{}/generate_stream")


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_models_failure_is_a_500_on_every_way_in(boxes: Boxes, number: int) -> None:
    box = boxes(MODELS)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [number, 0]}
    bodies = {
        "/v2/models/fails/infer": {"inputs": [tensor]},
        "/invocations?modelname=fails": {"inputs": [tensor]},
        **{path.format("fails"): {"x": [number, 0]} for path in GENERATE},
    }
    for path, body in bodies.items():
        answer = requests.post(f"{box.url}{path}", json=body, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (500, "model_failed"), (path, answer.text)


@pytest.mark.parametrize("path", GENERATE)
def test_a_wrong_input_is_the_callers(boxes: Boxes, path: str) -> None:
    url = f"{boxes(MODELS).url}{path.format('works')}"
    assert requests.post(url, json={"x": [5, 1]}, timeout=60).status_code == 200
    for body in WRONG:
        answer = requests.post(url, data=json.dumps(body), timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_input"), (body, answer.text)
