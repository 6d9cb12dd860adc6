"""A bucket, two Tritons and two forms of the gateway, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.aws import fake_aws
from tests.support.boxes import retry_until_ok
from tests.support.gateways import (
    MODELS,
    FakeBucket,
    Gateway,
    addresses_of,
    environment,
    prepare_empty_triton,
    running_chalice_local,
    running_gateway_server,
)
from tests.support.tritons import TritonProcess


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="session")
def cloud(folder: Path) -> Iterator[FakeBucket]:
    with fake_aws() as address:
        cloud = FakeBucket(address)
        for name, model in MODELS.items():
            cloud.put_model(name, folder / "models", model)
        yield cloud


@pytest.fixture(scope="session")
def tritons(folder: Path) -> Iterator[list[TritonProcess]]:
    """Two Tritons that share a repository."""
    processes = [prepare_empty_triton(folder / name, folder / "repository") for name in ("first", "second")]
    try:
        with ThreadPoolExecutor(2) as executor:
            list(executor.map(lambda triton: triton.start(), processes))
        yield processes
    finally:
        for triton in processes:
            triton.kill()


@pytest.fixture(scope="session")
def gateway_env(cloud: FakeBucket, tritons: list[TritonProcess], folder: Path) -> dict[str, str]:
    repository = str(folder / "repository")
    return environment(cloud.address, addresses_of(*tritons), TRIREME_GATEWAY_REPOSITORY=repository)


@pytest.fixture(scope="session")
def local_gateway(gateway_env: dict[str, str], folder: Path) -> Iterator[Gateway]:
    """``chalice local``, with every model loaded."""
    with running_chalice_local(folder / "local.log", gateway_env) as gateway:
        for name in MODELS:
            response = gateway.request("POST", f"/load_model/{name}")
            assert response.status_code == 200, response.text
        yield gateway


@pytest.fixture(scope="session")
def gateway_server(gateway_env: dict[str, str], local_gateway: Gateway, folder: Path) -> Iterator[Gateway]:
    """The gateway in its own server, with 2 s and 100 KiB for a request."""
    options = {
        "TRIREME_GATEWAY_TIMEOUT": "2",
        "TRIREME_GATEWAY_RECEIVE_TIMEOUT": "7",
        "TRIREME_GATEWAY_MIN_RATE": "4096",
        "TRIREME_GATEWAY_QUEUE": "4",
        "TRIREME_GATEWAY_BUFFER_MB": "0.1",
        "TRIREME_GATEWAY_MAX_MB": "0.1",
    }
    with running_gateway_server(folder / "server.log", {**gateway_env, **options}) as gateway:
        # The first requests set up S3, Triton and a client, which may take longer than 2 s on a busy machine.
        retry_until_ok(lambda: gateway.infer("who", {"payload": {"tensor": [0]}}))
        yield gateway
