"""Two Tritons behind one gateway share the requests, and one of them may die."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from tests.support.gateways import MODELS, Gateway
from tests.support.tritons import TritonProcess


def infer_process(gateway: Gateway) -> tuple[int, str]:
    response = gateway.infer("who", {"payload": {"tensor": [0]}})
    return response.status_code, response.text


@pytest.mark.exhaustive
def test_two_tritons_share_the_requests_and_if_one_dies_the_other_serves_all(
    local_gateway: Gateway, tritons: list[TritonProcess]
) -> None:
    second = tritons[1]
    answers_before = Counter(infer_process(local_gateway)[1] for _ in range(10))
    assert sorted(answers_before.values()) == [5, 5]
    try:
        with ThreadPoolExecutor(4) as executor:
            pending = [executor.submit(infer_process, local_gateway) for _ in range(100)]
            second.kill()
            statuses = Counter(future.result()[0] for future in pending)
        # Only the requests that the dead one was working on are lost: one for each of four callers.
        assert set(statuses) <= {200, 503}, statuses
        assert statuses[503] <= 4
        assert {infer_process(local_gateway)[0] for _ in range(10)} == {200}
        health = local_gateway.request("GET", "/health", key=None)
        assert health.status_code == 200
        assert [*health.json()["tritons"].values()].count("ready") == 1
    finally:
        second.start()
        channel = Channel(second.box.grpc_port, 60)
        for name in MODELS:
            ModelControl(channel, 60).load(name)
        channel.close()
    answers_after = Counter(infer_process(local_gateway)[1] for _ in range(10))
    assert len(answers_after) == 2
