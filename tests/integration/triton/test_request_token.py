"""Models in a real Triton that return the token of their request: an answer to another request is refused."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sm.errors import NotReady
from sm.metrics import MISMATCHED_ANSWERS
from sm.triton.inference_plan import REQUEST_TOKEN
from sm.triton.transport import Transport
from tests.support.series import value
from tests.support.tritons import TritonProcess


def row_of(*numbers: float) -> dict[str, Any]:
    return {"x": np.array([numbers], np.float32)}


@pytest.mark.parametrize("size", [3, 100_000], ids=["in the message", "through shared memory"])
def test_concurrent_callers_each_get_their_own_answer(transport: Transport, size: int) -> None:
    assert set(transport.metadata("token_batching").outputs) == {"y"}

    def infer_number(number: int) -> bool:
        inputs = row_of(*([number] * size))
        return bool((transport.infer("token_batching", inputs)["y"] == inputs["x"] * 2).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(infer_number, range(1, 65)))


def test_another_request_s_answer_is_a_503_and_counted(transport: Transport) -> None:
    mismatches_before = value(MISMATCHED_ANSWERS)
    with pytest.raises(NotReady):
        transport.infer("token_batching", row_of(-1.0, 2.0))
    assert value(MISMATCHED_ANSWERS) == mismatches_before + 1


def test_the_parts_of_a_stream_carry_the_token_too(transport: Transport) -> None:
    parts = [part["y"].tolist() for part in transport.stream("token_stream", {"x": np.ones(1, np.float32)})]
    assert parts == [[1.0], [2.0], [3.0]]


def test_a_caller_of_triton_s_own_port_gets_no_token(triton: TritonProcess) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/token_plain/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as response:
        outputs = json.load(response)["outputs"]
    assert [output["name"] for output in outputs] == ["y"]
    assert REQUEST_TOKEN not in json.dumps(outputs)
