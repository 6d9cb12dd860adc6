"""What of a request's head reaches a client, what comes back to the caller, and what does not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import boto3
import botocore.config
import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import MODELS

CLIENTS = CLIENT_FOLDERS / "platform"
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
ROWS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
ASKED = b'{"modelname":"probe","payload":{}}'


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("headers")
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENTS,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MAX_REQUEST_SIZE="100000",
    ) as started:
        yield started


def raw(box: RunningBox, head: bytes, body: bytes = b"") -> bytes:
    """What comes back on a connection of its own until the box closes it."""
    with socket.create_connection(("127.0.0.1", box.port), timeout=10) as connection:
        connection.sendall(head + b"\r\n" + body)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def test_every_header_of_the_platform_reaches_the_client(box: RunningBox) -> None:
    words = "Target-Model Target-Variant Target-Container-Hostname Inference-Id"
    names = [*words.split(), "Enable-Explanations", "Inference-Component"]
    sent = {f"X-Amzn-SageMaker-{name}": f"value of {name}" for name in names}
    sent[ATTRIBUTES] = "trace=1;modelname=probe"
    assert box.send(ASKED, headers={**sent, "X-Other": "no"}).json()["result"]["headers"] == {
        name.lower(): value for name, value in sent.items()
    }


def test_a_client_sets_the_answers_custom_attributes(box: RunningBox) -> None:
    response = box.invoke("probe", {"attributes": "took=3;tokens=17"})
    assert response.headers[ATTRIBUTES] == "took=3;tokens=17"
    assert ATTRIBUTES not in box.invoke("probe", {}).headers


def test_a_real_boto3_client_sends_and_gets_custom_attributes(box: RunningBox) -> None:
    runtime = boto3.client(
        "sagemaker-runtime",
        region_name="eu-west-1",
        endpoint_url=box.url,
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=botocore.config.Config(retries={"max_attempts": 0}),
    )
    answer = runtime.invoke_endpoint(
        EndpointName="any",
        ContentType="application/json",
        CustomAttributes="modelname=probe",
        Body=b'{"payload":{"attributes":"a=b"}}',
    )
    assert answer["CustomAttributes"] == "a=b"
    assert answer["InvokedProductionVariant"] == "AllTraffic"


@pytest.mark.parametrize("text", ["a\r\nSet-Cookie: b=c", "x" * 1025, "ä"])
def test_attributes_that_are_no_header_are_the_clients_failure(box: RunningBox, text: str) -> None:
    response = box.invoke("probe", {"attributes": text})
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert "Set-Cookie" not in response.headers
    assert ATTRIBUTES not in response.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", ASKED.replace(b"probe", b"nobody")),
        ("/invocations", b'{"modelname":"probe","payload":{"numbers":[1]}}'),
        ("/invocations", json.dumps(ROWS).encode()),
        ("/invocations", b"{"),
        ("/invocations", b" " * 100_001),
        ("/v2/models/echo/infer", json.dumps(ROWS).encode()),
        ("/nowhere", b""),
        ("/ping", b""),
    ],
)
def test_nothing_that_a_caller_sends_in_its_head_comes_back(box: RunningBox, path: str, body: bytes) -> None:
    sent = dict.fromkeys(("X-Random", "Cookie", "Origin", "Authorization", ATTRIBUTES), "echo-me-not")
    sent["X-Amzn-SageMaker-Enable-Explanations"] = "echo-me-not"
    response = requests.post(
        box.url + path, data=body, headers={"Content-Type": "application/json", **sent}, timeout=10
    )
    assert "echo-me-not" not in str(response.headers) + response.text


def test_the_callers_id_is_in_its_error_and_in_the_log(box: RunningBox) -> None:
    sent = {"X-Amzn-SageMaker-Inference-Id": "mine-17", "X-Amzn-Trace-Id": "Root=1"}
    assert box.send(b"{", headers=sent).json()["request_id"] == "mine-17"
    assert box.wait_for_log('"mine-17"')
    root = "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert box.send(b"{", headers={"X-Amzn-Trace-Id": root}).json()["request_id"] == root
    assert " " not in box.send(b"{", headers={"X-Amzn-Trace-Id": f"{root} forged"}).json()["request_id"]
    assert len({box.send(b"{").json()["request_id"] for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/ping"),
        ("GET", "/models"),
        ("GET", "/metrics"),
        ("GET", "/execution-parameters"),
        ("GET", "/v2"),
        ("GET", "/v2/health/ready"),
        ("POST", "/v2/models/echo/infer"),
        ("POST", "/invocations"),
        ("PUT", "/invocations"),
        ("GET", "/nowhere"),
    ],
)
def test_an_answer_that_is_no_stream_has_its_length(box: RunningBox, method: str, path: str) -> None:
    body = json.dumps(ROWS).encode() if method == "POST" else None
    sent = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    response = requests.request(method, box.url + path, data=body, headers=sent, timeout=10)
    assert int(response.headers["Content-Length"]) == len(response.content)
    assert "Transfer-Encoding" not in response.headers


def test_a_caller_of_http_1_0_is_answered_and_its_connection_closed(box: RunningBox) -> None:
    head = b"POST /invocations HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    answer = raw(box, head % len(ASKED), ASKED)
    assert answer.split(b"\r\n")[0].endswith(b" 200 OK")
    assert b'"result"' in answer
    assert b"Transfer-Encoding" not in answer
    assert b" 200 " in raw(box, b"GET /ping HTTP/1.0\r\n").split(b"\r\n")[0]


def test_a_header_that_comes_twice_is_one_with_both_values(box: RunningBox) -> None:
    head = (
        b"POST /invocations HTTP/1.1\r\nHost: box\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Amzn-SageMaker-Target-Variant: a\r\nX-Amzn-SageMaker-Target-Variant: b\r\n"
        b"Content-Length: %d\r\n"
    )
    answer = raw(box, head % len(ASKED), ASKED)
    said = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert said["result"]["headers"]["x-amzn-sagemaker-target-variant"].replace(" ", "") == "a,b"


@pytest.mark.parametrize(
    "twice",
    [
        b"Content-Length: 34\r\nContent-Length: 35\r\n",
        b"Content-Length: 34\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
    ],
)
def test_two_lengths_are_a_400_and_the_box_lives(box: RunningBox, twice: bytes) -> None:
    head = b"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\n"
    answer = raw(box, head + twice, ASKED)
    assert answer.split(b"\r\n")[0].endswith(b" 400 Bad Request")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "bad_input"
    assert box.ping()[0] == 200
