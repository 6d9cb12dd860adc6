"""The model that runs ONNX graphs in a real Triton joins requests into batches, and each fails on its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import requests

from sm.errors import BadInput
from sm.triton.transport import Transport
from tests.support.other_triton import needs
from tests.support.tritons import TritonProcess


def pick(transport: Transport, at: int, model: str = "batched") -> Any:
    return transport.infer(model, {"at": np.array([[at]])}, outputs=["row"])["row"].tolist()


def execution_count(triton: TritonProcess) -> int:
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/batched/stats"
    return int(requests.get(url, timeout=5).json()["model_stats"][0]["execution_count"])


def test_waiting_requests_run_as_one_batch_and_each_gets_its_own_answer_or_error(
    transport: Transport, triton: TritonProcess
) -> None:
    def first_number(at: int) -> float | None:
        try:
            return float(pick(transport, at)[0][0][0])
        except BadInput:
            return None

    before = execution_count(triton)
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(first_number, [0, 1, 2, 3] * 2)) == [0, 3, 6, 9] * 2
        assert execution_count(triton) - before < 8
        assert list(callers.map(first_number, [0, 1, 99, 2, 3, 0, 1, 2])) == [0, 3, None, 6, 9, 0, 3, 6]


def test_a_model_without_batches_is_run_request_by_request(transport: Transport) -> None:
    def infer_twice(at: int) -> Any:
        return transport.infer("single", {"at": np.array([at])})["twice"].tolist()

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(infer_twice, range(4))) == [[0], [2], [4], [6]]


def test_a_configuration_may_set_more_instances_with_fewer_threads(
    triton: TritonProcess, transport: Transport
) -> None:
    """Triton's log names each instance that it starts."""
    log = (triton.box.run / "triton.log").read_text()
    assert all(f"threaded_0_{number}" in log for number in (0, 1))
    assert pick(transport, 2, "threaded") == [[[6, 7, 8]]]


@needs("strings")
def test_texts_are_read_and_answered_as_utf_8(transport: Transport) -> None:
    text, other = ([[each.encode()] for each in texts] for texts in (("Käse", ""), ("Käse", "x")))
    given = {"text": np.array(text, object), "other": np.array(other, object)}
    answer = transport.infer("same_text", given)
    assert (answer["echo"].tolist(), answer["equal"].tolist()) == (text, [[True], [False]])
