"""The gateway without S3: any body to one Triton or several, versions, faults of Triton, and its own end."""

from __future__ import annotations

import os
import signal
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
    addresses_of,
    environment,
    prepare_empty_triton,
    running_gateway_server,
)
from tests.support.tritons import TritonProcess


def without_bucket(*tritons: TritonProcess, **more: str) -> dict[str, str]:
    """The environment of a gateway that knows neither a bucket nor AWS."""
    variables = environment("127.0.0.1:1", addresses_of(*tritons), **more)
    return {name: value for name, value in variables.items() if "BUCKET" not in name and "AWS" not in name}


def load(triton: TritonProcess, *names: str) -> None:
    channel = Channel(triton.box.grpc_port, 60)
    for name in names:
        ModelControl(channel, 60).load(name)
    channel.close()


@pytest.fixture(scope="module")
def gateway(tritons: list[TritonProcess], local_gateway: Gateway, folder: Path) -> Iterator[Gateway]:
    """A gateway of the folder's two Tritons, once another gateway has loaded every model."""
    variables = without_bucket(*tritons, TRIREME_GATEWAY_CACHE_MB="1")
    with running_gateway_server(folder / "without-bucket.log", variables) as started:
        yield started


def process_of(gateway: Gateway, number: int) -> Any:
    """Infer with a model that answers its process, through the cache."""
    response = gateway.infer("who", {"payload": {"tensor": [number]}})
    return response.json()["predictions"]["y"][0] if response.ok else response.status_code


def test_any_body_is_the_payload_but_no_key_of_s3(gateway: Gateway) -> None:
    assert gateway.request("GET", "/models").json() == {"status": "success", "models": sorted(MODELS)}
    for document in ({"payload": {"tensor": ["3", "b"]}}, {"tensor": ["3", "b"]}):
        answer = gateway.infer("words", document).json()
        assert (answer["predictions"], answer["result_s3_key"]) == ({"y": ["3", "B"]}, None)
    response = gateway.request("POST", "/infer/resnet", data=RED, headers={"Content-Type": "image/png"})
    assert response.json()["predictions"][0].startswith("1.000000:0"), response.text
    response = gateway.infer("resnet", {"s3_key": "images/red.png"})
    assert (response.status_code // 100, response.json()["field"]) == (4, "s3_key")


def test_an_answer_is_remembered_and_others_are_shared_out(gateway: Gateway) -> None:
    # The Tritons take turns, so that one process answers all only if the cache does.
    assert len({process_of(gateway, 1) for _ in range(6)}) == 1
    assert len({process_of(gateway, number) for number in range(2, 8)}) == 2


def test_one_triton_is_down_and_comes_back_empty(gateway: Gateway, tritons: list[TritonProcess]) -> None:
    second, numbers = tritons[1], iter(range(100, 100_000))

    def answers() -> Counter[Any]:
        return Counter(process_of(gateway, next(numbers)) for _ in range(10))

    second.kill()
    wait_until(
        lambda: answers().keys().isdisjoint({500, 503}), description="all requests on the other Triton"
    )
    health = gateway.request("GET", "/health", key=None)
    assert (health.status_code, [*health.json()["tritons"].values()].count("ready")) == (200, 1)
    second.start()  # without any model

    def both_serve() -> bool:
        found = answers()
        assert not {400, 500} & found.keys(), found
        return len(found) == 2 and 503 not in found

    wait_until(both_serve, description="the model on both Tritons")
    load(second, *MODELS)


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
    encrypted = {"TLS": "true", "TLS_NAME": "localhost"}
    authority = {**encrypted, "TLS_CA": str(certificate)}
    own = {"TLS_CERTIFICATE": str(callers_certificate), "TLS_KEY": str(callers_key)}
    others_name = {"TLS_NAME": "another.name"}

    def answer(**options: str) -> Any:
        variables = {f"TRIREME_GATEWAY_{name}": value for name, value in options.items()}
        with running_gateway_server(tmp_path / "log", without_bucket(triton, **variables)) as gateway:
            return process_of(gateway, 1)

    try:
        triton.start()
        assert answer(**authority, **own) not in (400, 500, 503)
        for too_little in ({}, authority, {**encrypted, **own}, {**authority, **own, **others_name}):
            assert answer(**too_little) == 503
    finally:
        triton.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_gateway_exits_with_0_and_leaves_nothing(
    tritons: list[TritonProcess], local_gateway: Gateway, short_path: Path, number: int
) -> None:
    variables = without_bucket(*tritons, TMPDIR=str(short_path))
    with running_gateway_server(short_path / "log", variables) as gateway:
        assert isinstance(process_of(gateway, 1), int)
        assert [path for path in short_path.iterdir() if path.is_dir()]
        os.kill(gateway.pid, number)
        wait_until(lambda: gateway.process.poll() is not None, description="the end of the gateway")
        assert gateway.process.returncode == 0
    assert [path.name for path in short_path.iterdir()] == ["log"]
