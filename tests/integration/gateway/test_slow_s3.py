"""The gateway over an S3 that drips: who needs S3 is told in time, and nobody else waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.boxes import wait_until
from tests.support.dripping_proxy import DrippingProxy, dripping
from tests.support.gateway_requests import RED
from tests.support.gateways import Cloud, Gateway, served

#: Seconds of a request.
TIMEOUT_S = 3
STORED, INLINE = {"s3_key": "images/slow.png"}, {"payload": {"tensor": [1]}}


@pytest.fixture(scope="module")
def proxy(cloud: Cloud) -> Iterator[DrippingProxy]:
    # Longer than the head of an answer; a picture ends where its own format says.
    cloud.put("images/slow.png", RED + bytes(2000))
    with dripping(f"http://{cloud.address}") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def gateway(env: dict[str, str], local: Gateway, proxy: DrippingProxy, home: Path) -> Iterator[Gateway]:
    more = {
        "AWS_ENDPOINT_URL": proxy.url,
        "TRIREME_GATEWAY_TIMEOUT": str(TIMEOUT_S),
        "TRIREME_GATEWAY_THREADS": "2",
        "TRIREME_GATEWAY_QUEUE": "2",
    }
    with served(home / "slow_s3.log", {**env, **more}) as gateway:
        # Each model's client is made when it is first asked for, with files from S3.
        assert gateway.infer("who", INLINE).status_code == 200
        assert gateway.infer("resnet", STORED).status_code == 200
        yield gateway


@pytest.mark.parametrize("slow_from", [0, 1000])
def test_a_dripping_s3_keeps_nobody_else_waiting_and_is_left_in_time(
    gateway: Gateway, proxy: DrippingProxy, slow_from: int
) -> None:
    proxy.slow_from = slow_from
    with ThreadPoolExecutor(6) as executor:
        waiting = [executor.submit(gateway.infer, "resnet", STORED) for _ in range(6)]
        wait_until(lambda: proxy.open, description="a connection to S3")
        time.sleep(0.3)
        assert [gateway.infer("who", INLINE).status_code for _ in range(4)] == [200] * 4
        assert not all(future.done() for future in waiting)
    statuses = [future.result().status_code for future in waiting]
    assert statuses.count(429) == 2
    assert statuses.count(504) >= 2
    assert {429, 503, 504} >= set(statuses)
    proxy.slow_from = None
    wait_until(lambda: not proxy.open, description="all connections to S3 to be closed")
    assert gateway.infer("resnet", STORED).status_code == 200


def test_a_model_whose_files_come_slowly_keeps_no_other_waiting(
    gateway: Gateway, proxy: DrippingProxy
) -> None:
    proxy.slow_from = 0
    with ThreadPoolExecutor(4) as executor:
        # Nobody has asked this gateway for it before: its labels are in S3.
        waiting = [executor.submit(gateway.infer, "colours", INLINE) for _ in range(4)]
        wait_until(lambda: proxy.open, description="a connection to S3")
        time.sleep(0.3)
        assert [gateway.infer("who", INLINE).status_code for _ in range(4)] == [200] * 4
        assert not all(future.done() for future in waiting)
    proxy.slow_from = None
    assert {503, 504} >= {future.result().status_code for future in waiting}
    assert gateway.infer("colours", INLINE).status_code == 400  # it wants a picture


def test_an_answer_without_a_length_is_a_502(gateway: Gateway, proxy: DrippingProxy) -> None:
    proxy.keeps_length = False
    try:
        response = gateway.infer("resnet", STORED)
    finally:
        proxy.keeps_length = True
    assert (response.status_code, response.json()["code"]) == (502, "storage_failed"), response.text
