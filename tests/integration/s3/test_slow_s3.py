"""A real box whose S3 drips: who waits for it is told in time, and nobody else waits."""

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
from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.dripping_proxy import DrippingProxy, dripping
from tests.support.s3 import CREDENTIALS, client
from tests.support.s3_client_source import CLIENT
from tests.support.tritons import MODELS

#: Seconds of an invocation, and threads of the one worker.
TIMEOUT_S, THREADS, S3_THREADS = 3, 2, 4
#: More callers than threads and S3 have room for.
CALLERS = 8
STORED = {"s3_uri": "s3://inputs/cat.png"}
RECORD = {"modelname": "look", "payload": STORED}
BODIES = {
    "record": (json.dumps(RECORD).encode(), "application/json"),
    "list": (json.dumps({"modelname": "look", "payload": [STORED] * 4}).encode(), "application/json"),
    "lines": (b"\n".join([json.dumps(RECORD).encode()] * 4), "application/jsonlines"),
    # The same record as some writers of JSON would write it.
    "escaped": (json.dumps(RECORD).replace("s3_uri", r"s3\u005furi").encode(), "application/json"),
}


@pytest.fixture(scope="module")
def proxy(aws: str) -> Iterator[DrippingProxy]:
    with dripping(aws) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def box(aws: str, proxy: DrippingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("box")
    MODELS["echo"].write(folder / "model" / "echo")
    (folder / "clients" / "look").mkdir(parents=True)
    (folder / "clients" / "look" / "client.py").write_text(CLIENT)
    client(aws).put_object(Bucket="inputs", Key="cat.png", Body=picture())
    variables: Any = {
        "TRIREME_S3_BUCKETS": "inputs",
        "TRIREME_THREADS": str(THREADS),
        "TRIREME_S3_THREADS": str(S3_THREADS),
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT": str(TIMEOUT_S),
        "AWS_ENDPOINT_URL": proxy.url,
        **CREDENTIALS,
    }
    with running_box(folder, folder / "model", clients=(folder / "clients",), **variables) as started:
        yield started


def picture() -> bytes:
    return (HERE / "clients" / "resnet" / "sample" / "cat.png").read_bytes()


@contextmanager
def waiting_callers(
    box: RunningBox, proxy: DrippingProxy, form: str, slow_from: int
) -> Iterator[list[Future[requests.Response]]]:
    """Callers who wait for an S3 that drips."""
    body, content_type = BODIES[form]
    proxy.slow_from = slow_from
    try:
        with ThreadPoolExecutor(CALLERS) as executor:
            waiting = [executor.submit(box.send, body, content_type) for _ in range(CALLERS)]
            wait_until(lambda: proxy.open, description="a connection to S3")
            time.sleep(0.3)
            yield waiting
    finally:
        proxy.slow_from = None


@pytest.mark.parametrize(("form", "slow_from"), [*((form, 0) for form in BODIES), ("record", 1000)])
def test_a_dripping_s3_keeps_nobody_else_waiting_and_is_left_in_time(
    box: RunningBox, proxy: DrippingProxy, form: str, slow_from: int
) -> None:
    inline = {"image": base64.b64encode(picture()).decode()}
    with waiting_callers(box, proxy, form, slow_from) as waiting:
        assert box.invoke("look", inline).status_code == 200
        assert box.invoke("look", [inline, inline]).status_code == 200
        # Nobody has waited for their end.
        assert not all(future.done() for future in waiting)
        assert box.invoke("look", inline).status_code == 200
    answers = [future.result() for future in waiting]
    # A 504 is the box's own word: the caller waits much longer.
    assert {answer.status_code for answer in answers} <= {429, 504}, [answer.text for answer in answers]
    assert 504 in {answer.status_code for answer in answers}
    wait_until(lambda: not proxy.open, description="all connections to S3 to be closed")
    assert box.invoke("look", STORED).status_code == 200


def test_a_caller_who_hangs_up_is_not_read_for_any_longer(box: RunningBox, proxy: DrippingProxy) -> None:
    body, content_type = BODIES["record"]
    host, port = box.url.removeprefix("http://").split(":")
    proxy.slow_from = 1000
    with socket.create_connection((host, int(port))) as caller:
        head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
        caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: proxy.open, description="a connection to S3")
        timed_out = box.metric("trireme_invocations_total", status="504")
    wait_until(lambda: not proxy.open, description="the connection to S3 to be closed")
    proxy.slow_from = None
    # It was closed because the caller was gone, and not because the time was over.
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the work")
    assert box.metric("trireme_invocations_total", status="504") == timed_out


def test_an_answer_without_a_length_is_a_502(box: RunningBox, proxy: DrippingProxy) -> None:
    proxy.keeps_length = False
    try:
        answer = box.invoke("look", STORED)
    finally:
        proxy.keeps_length = True
    assert (answer.status_code, answer.json()["code"]) == (502, "storage_failed"), answer.text
