"""Two Tritons behind one gateway, and one of them killed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from tests.support.gateways import MODELS, Gateway
from tests.support.tritons import TritonProcess


def ask(gateway: Gateway) -> tuple[int, str]:
    response = gateway.infer("who", {"payload": {"tensor": [0]}})
    return response.status_code, response.text


def test_two_tritons_share_the_work_and_when_one_dies_the_other_has_it(
    local: Gateway, tritons: list[TritonProcess]
) -> None:
    second = tritons[1]
    before = Counter(ask(local)[1] for _ in range(10))
    assert sorted(before.values()) == [5, 5]
    try:
        with ThreadPoolExecutor(4) as executor:
            running = [executor.submit(ask, local) for _ in range(100)]
            second.kill()
            statuses = Counter(future.result()[0] for future in running)
        # What the dead one was working on is lost, and no more: four callers had one request each.
        assert set(statuses) <= {200, 503}, statuses
        assert statuses[503] <= 4
        assert {ask(local)[0] for _ in range(10)} == {200}
        health = local.ask("GET", "/health", key=None)
        assert health.status_code == 200
        assert sorted(health.json()["tritons"].values()) == ["Triton does not answer", "ready"]
    finally:
        second.start()
        channel = Channel(second.box.grpc_port, 60)
        for name in MODELS:
            ModelControl(channel, 60).load(name)
        channel.close()
    after = Counter(ask(local)[1] for _ in range(10))
    assert len(after) == 2
