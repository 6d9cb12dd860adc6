"""A real box with a very slow S3: its callers get a 504 or 429 in time, and other callers do not wait."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.integration.s3.s3_client_source import CLIENT
from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.dripping_proxy import DrippingProxy, running_dripping_proxy
from tests.support.s3 import CREDENTIALS, client
from tests.support.tritons import MODELS

#: The deadline of an invocation; threads of the one worker; its threads for S3.
TIMEOUT_S, THREADS, S3_THREADS = 6, 2, 4
#: More callers than the worker's threads and those for S3 can serve.
CALLERS = 8
S3_PAYLOAD = {"s3_uri": "s3://inputs/cat.png"}
S3_RECORD = {"modelname": "look", "payload": S3_PAYLOAD}
BODIES = {
    "record": (json.dumps(S3_RECORD).encode(), "application/json"),
    "list": (json.dumps({"modelname": "look", "payload": [S3_PAYLOAD] * 4}).encode(), "application/json"),
    "lines": (b"\n".join([json.dumps(S3_RECORD).encode()] * 4), "application/jsonlines"),
    # The same record as some JSON writers escape it.
    "escaped": (json.dumps(S3_RECORD).replace("s3_uri", r"s3\u005furi").encode(), "application/json"),
}


@pytest.fixture(scope="module")
def proxy(aws: str) -> Iterator[DrippingProxy]:
    with running_dripping_proxy(aws) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def box(aws: str, proxy: DrippingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("box")
    MODELS["echo"].write(folder / "model" / "echo")
    (folder / "clients" / "look").mkdir(parents=True)
    (folder / "clients" / "look" / "client.py").write_text(CLIENT)
    client(aws).put_object(Bucket="inputs", Key="cat.png", Body=read_picture())
    variables: Any = {
        "TRIREME_S3_BUCKETS": "inputs",
        "TRIREME_THREADS": str(THREADS),
        "TRIREME_S3_THREADS": str(S3_THREADS),
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT": str(TIMEOUT_S),
        "AWS_ENDPOINT_URL": proxy.url,
        **CREDENTIALS,
    }
    with running_box(folder, folder / "model", clients=(folder / "clients",), **variables) as box:
        yield box


def read_picture() -> bytes:
    return (HERE / "clients" / "resnet" / "sample" / "cat.png").read_bytes()


@contextmanager
def callers_waiting_for_s3(
    box: RunningBox, proxy: DrippingProxy, form: str, slow_from: int
) -> Iterator[list[Future[requests.Response]]]:
    """Start callers that wait for an S3 that sends its bytes very slowly."""
    body, content_type = BODIES[form]
    proxy.slow_from_byte = slow_from
    try:
        with ThreadPoolExecutor(CALLERS) as executor:
            calls = [executor.submit(box.send, body, content_type) for _ in range(CALLERS)]
            wait_until(lambda: proxy.connections, description="a connection to S3")
            time.sleep(0.3)
            yield calls
    finally:
        proxy.slow_from_byte = None


@pytest.mark.parametrize(("form", "slow_from"), [*((form, 0) for form in BODIES), ("record", 1000)])
def test_a_slow_s3_ends_in_a_504_and_does_not_delay_other_callers(
    box: RunningBox, proxy: DrippingProxy, form: str, slow_from: int
) -> None:
    inline_picture = {"image": base64.b64encode(read_picture()).decode()}
    with callers_waiting_for_s3(box, proxy, form, slow_from) as slow_calls:
        assert box.invoke("look", inline_picture).status_code == 200
        assert box.invoke("look", [inline_picture, inline_picture]).status_code == 200
        # The others did not have to wait for the slow calls to end.
        assert not all(call.done() for call in slow_calls)
        assert box.invoke("look", inline_picture).status_code == 200
    responses = [call.result() for call in slow_calls]
    # The 504 is the box's response: the caller itself would wait much longer.
    assert {response.status_code for response in responses} <= {429, 504}, [
        response.text for response in responses
    ]
    assert 504 in {response.status_code for response in responses}
    wait_until(lambda: not proxy.connections, description="all connections to S3 to be closed")
    assert box.invoke("look", S3_PAYLOAD).status_code == 200


def test_a_download_ends_when_its_caller_hangs_up(box: RunningBox, proxy: DrippingProxy) -> None:
    body, content_type = BODIES["record"]
    host, port = box.url.removeprefix("http://").split(":")
    proxy.slow_from_byte = 1000
    with socket.create_connection((host, int(port))) as caller:
        head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
        caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: proxy.connections, description="a connection to S3")
        timeouts_before = box.metric("trireme_invocations_total", status="504")
    wait_until(lambda: not proxy.connections, description="the connection to S3 to be closed")
    proxy.slow_from_byte = None
    # It was closed because the caller hung up, not because the deadline passed.
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the work")
    assert box.metric("trireme_invocations_total", status="504") == timeouts_before
