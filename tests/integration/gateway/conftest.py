"""One bucket, two Tritons and two forms of the gateway, which all of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.aws import fake_aws
from tests.support.gateways import (
    MODELS,
    Cloud,
    Gateway,
    chalice_local,
    environment,
    new_triton,
    served,
)
from tests.support.tritons import TritonProcess


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="session")
def cloud(home: Path) -> Iterator[Cloud]:
    with fake_aws() as address:
        cloud = Cloud(address)
        for name, model in MODELS.items():
            cloud.put_model(name, home / "models", model)
        yield cloud


@pytest.fixture(scope="session")
def tritons(home: Path) -> Iterator[list[TritonProcess]]:
    """Two, with one repository between them."""
    servings = [new_triton(home / name, home / "repository") for name in ("first", "second")]
    try:
        with ThreadPoolExecutor(2) as executor:
            list(executor.map(lambda serving: serving.start(), servings))
        yield servings
    finally:
        for serving in servings:
            serving.kill()


@pytest.fixture(scope="session")
def env(cloud: Cloud, tritons: list[TritonProcess], home: Path) -> dict[str, str]:
    addresses = ",".join(f"127.0.0.1:{serving.box.grpc_port}" for serving in tritons)
    return environment(cloud.address, addresses, TRIREME_GATEWAY_REPOSITORY=str(home / "repository"))


@pytest.fixture(scope="session")
def local(env: dict[str, str], home: Path) -> Iterator[Gateway]:
    """``chalice local``, with every model loaded."""
    with chalice_local(home / "local.log", env) as gateway:
        for name in MODELS:
            response = gateway.ask("POST", f"/load_model/{name}")
            assert response.status_code == 200, response.text
        yield gateway


@pytest.fixture(scope="session")
def server(env: dict[str, str], local: Gateway, home: Path) -> Iterator[Gateway]:
    """The same in its own server: two seconds and 100 KiB for a request, answers are kept."""
    more = {
        "TRIREME_GATEWAY_TIMEOUT": "2",
        "TRIREME_GATEWAY_RECEIVE_TIMEOUT": "7",
        "TRIREME_GATEWAY_MIN_RATE": "4096",
        "TRIREME_GATEWAY_QUEUE": "4",
        "TRIREME_GATEWAY_BUFFER_MB": "0.1",
        "TRIREME_GATEWAY_CACHE_MB": "1",
        "TRIREME_GATEWAY_MAX_MB": "0.1",
    }
    with served(home / "server.log", {**env, **more}) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def lost(cloud: Cloud, home: Path) -> Iterator[Gateway]:
    """A gateway whose Triton is not there."""
    with served(home / "lost.log", environment(cloud.address, "127.0.0.1:1")) as gateway:
        yield gateway
