"""A container as examples/models_from_s3/compose.yaml describes it fetches its models into a volume.

moto's server is in MinIO's place; the container shares this machine's network to reach it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from sm.settings import HERE
from tests.support.boxes import free_port
from tests.support.containers import Container, podman, running_container
from tests.support.s3 import CREDENTIALS, aws, client
from tests.support.tritons import MODELS

__all__ = ["aws"]

SERVICES: dict[str, Any] = yaml.safe_load((HERE / "examples/models_from_s3/compose.yaml").read_text())[
    "services"
]
SERVICE: dict[str, Any] = SERVICES["box"]
VOLUME = "trireme-fetch-cache"


@pytest.fixture
def volume(image: str) -> Iterator[str]:
    """A volume of the box's user, which the example's service ``upload`` makes its owner."""
    podman("volume", "create", VOLUME)
    try:
        chown = ("--entrypoint", "chown", image, "1000:1000", "/cache")
        podman("run", "--rm", "--user", "0", "-v", f"{VOLUME}:/cache", *chown)
        yield VOLUME
    finally:
        podman("volume", "rm", "--force", VOLUME)


def test_the_services_of_the_example_belong_together() -> None:
    minio, variables = SERVICES["minio"]["environment"], SERVICE["environment"]
    assert variables["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert variables["AWS_ACCESS_KEY_ID"] == minio["MINIO_ROOT_USER"]
    assert variables["AWS_SECRET_ACCESS_KEY"] == minio["MINIO_ROOT_PASSWORD"]
    assert f"cache:{variables['TRIREME_CACHE']}" in SERVICE["volumes"]
    bucket = variables["TRIREME_MODEL_REPOSITORY"].removeprefix("s3://").rstrip("/")
    assert f"/models s3/{bucket}\n" in SERVICES["upload"]["command"][0]


def test_a_container_fetches_its_models_once(image: str, volume: str, aws: str, tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "echo")
    client(aws).create_bucket(Bucket="models")
    for file in filter(Path.is_file, (tmp_path / "echo").rglob("*")):
        client(aws).upload_file(str(file), "models", str(file.relative_to(tmp_path)))
    port = free_port()
    variables = {
        **SERVICE["environment"],
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": aws,
        "SAGEMAKER_BIND_TO_PORT": str(port),
    }
    (mount,) = SERVICE["volumes"]
    flags = [
        *("--network", "host", "-v", mount.replace("cache:", f"{volume}:", 1)),
        *("--read-only", "--tmpfs", SERVICE["tmpfs"][0], "--shm-size", SERVICE["shm_size"]),
        *("--cap-drop", SERVICE["cap_drop"][0], "--security-opt", "no-new-privileges"),
        *(part for name, value in variables.items() for part in ("-e", f"{name}={value}")),
    ]
    fetched = []
    for _ in range(2):
        with running_container(image, None, *flags) as started:
            box = Container(started.id, port)
            box.wait_ready()
            assert "echo" in requests.get(f"{box.url}/models", timeout=10).text
            metrics = requests.get(f"{box.url}/metrics", timeout=10).text
            found = re.search(r"^trireme_fetch_bytes(?:\{.*\})? (\S+)", metrics, re.MULTILINE)
            fetched.append(float(found[1]) if found else None)
    assert fetched[0]
    assert fetched[1] == 0
