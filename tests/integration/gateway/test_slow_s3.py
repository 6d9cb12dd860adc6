"""With a very slow S3, callers that need it get an error in time, and no other caller waits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.boxes import retry_until_ok, wait_until
from tests.support.gateways import RED, FakeBucket, Gateway, running_gateway_server
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

STORED_RECORD, INLINE_RECORD = {"s3_key": "images/slow.png"}, {"payload": {"tensor": [1]}}


@pytest.fixture(scope="module")
def proxy(cloud: FakeBucket) -> Iterator[TcpProxy]:
    # Longer than the head of a response; a picture ends where its own format says.
    cloud.put("images/slow.png", RED + bytes(2000))
    with tcp_proxy(f"http://{cloud.address}") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def gateway(
    gateway_env: dict[str, str], local_gateway: Gateway, proxy: TcpProxy, folder: Path
) -> Iterator[Gateway]:
    options = {
        "AWS_ENDPOINT_URL": proxy.url,
        "TRIREME_GATEWAY_TIMEOUT": "4",
        "TRIREME_GATEWAY_THREADS": "2",
        "TRIREME_GATEWAY_QUEUE": "2",
    }
    with running_gateway_server(folder / "slow_s3.log", {**gateway_env, **options}) as gateway:
        # A model's client is made at the first request, with files from S3, perhaps in more than 4 s.
        retry_until_ok(lambda: gateway.infer("who", INLINE_RECORD))
        retry_until_ok(lambda: gateway.infer("resnet", STORED_RECORD))
        yield gateway


def send_while_slow(
    gateway: Gateway, proxy: TcpProxy, model: str, record: object, callers: int
) -> list[requests.Response]:
    """Send requests that need S3, and others that do not, which must not wait. Return the answers to the first."""
    with ThreadPoolExecutor(callers) as executor:
        pending = [executor.submit(gateway.infer, model, record) for _ in range(callers)]
        wait_until(lambda: proxy.connections, description="a connection to S3")
        assert [gateway.infer("who", INLINE_RECORD).status_code for _ in range(4)] == [200] * 4
        assert not all(future.done() for future in pending)
    proxy.slow_from_byte = None
    wait_until(lambda: not proxy.connections, description="all connections to S3 to be closed")
    return [future.result() for future in pending]


@pytest.mark.parametrize("slow_from", [0, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_a_slow_object_in_s3_is_given_up_in_time_and_delays_no_other_caller(
    gateway: Gateway, proxy: TcpProxy, slow_from: int
) -> None:
    proxy.slow_from_byte = slow_from
    answers = send_while_slow(gateway, proxy, "resnet", STORED_RECORD, 6)
    # Beyond the threads and the queue.
    refused = [answer.headers["Retry-After"] for answer in answers if answer.status_code == 429]
    assert refused == ["1", "1"]
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(504) >= 2
    assert set(statuses) <= {429, 503, 504}
    assert gateway.infer("resnet", STORED_RECORD).status_code == 200


def test_a_model_whose_files_come_slowly_delays_no_other_model(gateway: Gateway, proxy: TcpProxy) -> None:
    proxy.slow_from_byte = 0
    # The first requests for this model, so its labels must come from S3.
    answers = send_while_slow(gateway, proxy, "colours", INLINE_RECORD, 4)
    assert {answer.status_code for answer in answers} <= {503, 504}
    assert gateway.infer("colours", INLINE_RECORD).status_code == 400  # the model takes a picture


def test_an_object_without_a_content_length_is_a_502(gateway: Gateway, proxy: TcpProxy) -> None:
    proxy.keeps_length = False
    try:
        response = gateway.infer("resnet", STORED_RECORD)
    finally:
        proxy.keeps_length = True
    assert (response.status_code, response.json()["code"]) == (502, "storage_failed"), response.text
