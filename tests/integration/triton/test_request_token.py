"""Models in a real Triton that return the token of their request: an answer to another request is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from sm.errors import NotReady
from sm.metrics import MISMATCHED_ANSWERS
from sm.triton.transport import Transport
from tests.support.series import value
from tests.support.tritons import ECHO_REQUEST, TritonProcess


@pytest.mark.parametrize("size", [3, 100_000], ids=["in the message", "through shared memory"])
def test_concurrent_callers_each_get_their_own_answer(transport: Transport, size: int) -> None:
    assert set(transport.metadata("token").outputs) == {"y"}

    def is_own(number: int) -> bool:
        y = transport.infer("token", {"x": np.full((1, size), number, np.float32)})["y"]
        return bool((y == 2 * number).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(is_own, range(1, 65)))


def test_another_request_s_answer_is_a_503_and_counted(transport: Transport) -> None:
    mismatches_before = value(MISMATCHED_ANSWERS)
    with pytest.raises(NotReady):
        transport.infer("token", {"x": np.array([[-1.0, 2.0]], np.float32)})
    assert value(MISMATCHED_ANSWERS) == mismatches_before + 1


def test_the_parts_of_a_stream_carry_the_token_too(transport: Transport) -> None:
    parts = [part["y"].tolist() for part in transport.stream("token_stream", {"x": np.ones(1, np.float32)})]
    assert parts == [[1.0], [2.0], [3.0]]


def test_a_caller_of_triton_s_own_port_gets_no_token(triton: TritonProcess) -> None:
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/token/infer"
    outputs = requests.post(url, json=ECHO_REQUEST, timeout=10).json()["outputs"]
    assert [output["name"] for output in outputs] == ["y"]
