"""The gateway without S3: any body to one Triton or several, versions, faults of Triton, and its own end."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm.settings import Settings
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from tests.support import certificates
from tests.support.boxes import wait_until
from tests.support.gateways import (
    MODELS,
    RED,
    Gateway,
    environment,
    prepare_empty_triton,
    running_gateway_server,
)
from tests.support.tritons import TritonProcess

SHORT_NAMES = {
    "colours": {
        "name": "explicit",
        "input_name": "input",
        "output_name": "logits",
        "input_shape": [1, 3, 8, 8],
    }
}


def without_bucket(addresses: str, **more: str) -> dict[str, str]:
    """The environment of a gateway that knows neither a bucket nor AWS."""
    variables = environment("127.0.0.1:1", addresses, **more)
    return {name: value for name, value in variables.items() if "BUCKET" not in name and "AWS" not in name}


def load(triton: TritonProcess, *names: str) -> None:
    channel = Channel(triton.box.grpc_port, 60)
    for name in names:
        ModelControl(channel, 60).load(name)
    channel.close()


@pytest.fixture(scope="module")
def two_tritons(tritons: list[TritonProcess], local_gateway: Gateway) -> list[TritonProcess]:
    """The folder's two Tritons, once another gateway has loaded every model."""
    return tritons


def addresses_of(tritons: list[TritonProcess]) -> str:
    return ",".join(f"127.0.0.1:{triton.box.grpc_port}" for triton in tritons)


@pytest.fixture(scope="module")
def gateway(two_tritons: list[TritonProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("log") / "gateway.log"
    variables = without_bucket(addresses_of(two_tritons), TRIREME_GATEWAY_CACHE_MB="1")
    with running_gateway_server(log, variables) as started:
        yield started


@pytest.fixture(scope="module")
def reference_gateway(
    two_tritons: list[TritonProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("log") / "reference.log"
    names = json.dumps(SHORT_NAMES)
    variables = without_bucket(addresses_of(two_tritons[:1]), TRIREME_GATEWAY_SHORT_NAMES=names)
    with running_gateway_server(log, variables) as started:
        yield started


def process_of(gateway: Gateway, number: int) -> Any:
    """Infer with a model that answers its process, through the cache."""
    response = gateway.infer("who", {"payload": {"tensor": [number]}})
    return response.json()["predictions"]["y"][0] if response.ok else response.status_code


def test_models_are_those_of_every_triton(gateway: Gateway, reference_gateway: Gateway) -> None:
    expected = {"status": "success", "models": sorted(MODELS)}
    for each in (gateway, reference_gateway):
        assert each.request("GET", "/models").json() == expected


@pytest.mark.parametrize("document", [{"payload": {"tensor": ["3", "b"]}}, {"tensor": ["3", "b"]}])
def test_a_json_body_is_a_request_or_the_payload_itself(gateway: Gateway, document: object) -> None:
    response = gateway.request("POST", "/infer/words", json=document)
    assert response.json()["predictions"] == {"y": ["3", "B"]}, response.text
    assert response.json()["result_s3_key"] is None


def test_a_raw_picture_is_a_body_too(gateway: Gateway) -> None:
    headers = {"Content-Type": "image/png"}
    response = gateway.request("POST", "/infer/resnet", data=RED, headers=headers)
    assert response.status_code == 200, response.text
    assert response.json()["predictions"][0].startswith("1.000000:0")


@pytest.mark.parametrize("body", [b"", b"{}", b"anything", RED])
def test_the_references_route_runs_on_random_numbers_for_any_body(
    reference_gateway: Gateway, body: bytes
) -> None:
    response = reference_gateway.request("POST", "/infer/colours", data=body)
    assert response.status_code == 200, response.text
    assert [len(row) for row in response.json()["output"]] == [6]


def test_an_object_in_s3_is_an_error_that_says_so(gateway: Gateway) -> None:
    response = gateway.infer("resnet", {"s3_key": "images/red.png"})
    assert response.status_code in (400, 403)
    assert "s3_key" in response.json()["error"]


@pytest.mark.parametrize("version", ["7", "x", "\u0663"])
def test_a_version_that_does_not_exist_is_a_400_in_every_contract(
    gateway: Gateway, reference_gateway: Gateway, version: str
) -> None:
    payload = {"payload": {"tensor": [0]}}
    own = gateway.infer("who", payload, params={"version": version})
    assert own.status_code == (400 if version == "7" else 422), own.text
    theirs = reference_gateway.request("POST", "/infer/colours", params={"version": version})
    assert theirs.status_code == 400, theirs.text
    assert "version" in theirs.json()["error"]
    assert gateway.infer("who", payload, params={"version": "1"}).status_code == 200


def test_an_answer_is_remembered(gateway: Gateway) -> None:
    # The Tritons take turns, so that one process answers all only if the cache does.
    assert len({process_of(gateway, 1) for _ in range(6)}) == 1
    assert len({process_of(gateway, number) for number in range(2, 8)}) == 2


def test_one_triton_is_down_and_comes_back_empty(gateway: Gateway, two_tritons: list[TritonProcess]) -> None:
    second = two_tritons[1]
    second.kill()
    wait_until(
        lambda: (
            {type(process_of(gateway, 100 + number)) for number in range(4)} == {int}
            and 503 not in [process_of(gateway, 200 + number) for number in range(10)]
        ),
        description="all requests on the other Triton",
    )
    second.start()  # without any model
    numbers = iter(range(1000, 100_000))

    def both_serve() -> bool:
        answers = Counter(process_of(gateway, next(numbers)) for _ in range(8))
        assert not {400, 500} & answers.keys(), answers
        return len(answers) == 2 and 503 not in answers

    wait_until(both_serve, description="the model on both Tritons")
    load(second, *MODELS)


@pytest.mark.exhaustive  # the test above holds it with two
def test_the_only_triton_comes_back_empty(tmp_path: Path) -> None:
    MODELS["who"].write(tmp_path / "repository" / "who")
    triton = prepare_empty_triton(tmp_path / "only", tmp_path / "repository")
    try:
        triton.start()
        load(triton, "who")
        with running_gateway_server(tmp_path / "log", without_bucket(addresses_of([triton]))) as gateway:
            first = process_of(gateway, 1)
            triton.kill()
            triton.start()
            wait_until(lambda: process_of(gateway, 1) not in (503, first), description="the model back")
            assert gateway.request("GET", "/models").json()["models"] == ["who"]
    finally:
        triton.kill()


@pytest.mark.exhaustive
def test_triton_is_called_by_tls_with_its_authority_and_the_callers_certificate(tmp_path: Path) -> None:
    certificate, key = certificates.write(tmp_path)
    callers_certificate, callers_key = certificates.write(tmp_path, "caller", client_only=True)
    MODELS["who"].write(tmp_path / "repository" / "who")
    arguments = (
        f"--grpc-use-ssl-mutual=true --grpc-server-cert={certificate} --grpc-server-key={key} "
        f"--grpc-root-cert={callers_certificate} --load-model=who"
    )
    settings = Settings.read({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": arguments})
    triton = prepare_empty_triton(tmp_path / "secured", tmp_path / "repository", settings)
    encrypted = {"TRIREME_GATEWAY_TLS": "true", "TRIREME_GATEWAY_TLS_NAME": "localhost"}
    authority = {**encrypted, "TRIREME_GATEWAY_TLS_CA": str(certificate)}
    own = {
        "TRIREME_GATEWAY_TLS_CERTIFICATE": str(callers_certificate),
        "TRIREME_GATEWAY_TLS_KEY": str(callers_key),
    }
    others_name = {"TRIREME_GATEWAY_TLS_NAME": "another.name"}
    try:
        triton.start()
        variables = without_bucket(addresses_of([triton]), **authority, **own)
        with running_gateway_server(tmp_path / "log", variables) as gateway:
            assert process_of(gateway, 1) not in (400, 500, 503)
            assert gateway.request("GET", "/models").json()["models"] == ["who"]
        for too_little in ({}, authority, {**encrypted, **own}, {**authority, **own, **others_name}):
            variables = without_bucket(addresses_of([triton]), **too_little)
            with running_gateway_server(tmp_path / "refused", variables) as gateway:
                assert process_of(gateway, 1) == 503
    finally:
        triton.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_gateway_exits_with_0_and_leaves_nothing(
    two_tritons: list[TritonProcess], short_path: Path, number: int
) -> None:
    variables = without_bucket(addresses_of(two_tritons), TMPDIR=str(short_path))
    with running_gateway_server(short_path / "log", variables) as gateway:
        assert isinstance(process_of(gateway, 1), int)
        assert [path for path in short_path.iterdir() if path.is_dir()]
        os.kill(gateway.pid, number)
        wait_until(lambda: gateway.process.poll() is not None, description="the end of the gateway")
        assert gateway.process.returncode == 0
    assert [path.name for path in short_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n", 400),
        (b"POST /infer/who HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 2**20 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_a_head_that_cannot_be_read_is_answered_in_json(gateway: Gateway, head: bytes, status: int) -> None:
    port = int(gateway.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head)
        answer = b""
        while part := connection.recv(2**16):
            answer += part
    start, _, body = answer.partition(b"\r\n\r\n")
    assert int(start.split()[1]) == status
    assert b"application/json" in start
    assert {"error", "code"} <= json.loads(body).keys()
    assert gateway.request("GET", "/health", key=None).status_code == 200
