"""The CPU flavour with the Triton of NVIDIA's image, taken out of the stand-in for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.container.baking import STAND_IN
from tests.support.boxes import wait_until
from tests.support.containers import build_image, has_image, podman, running_container

pytestmark = pytest.mark.exhaustive
IMAGE = "localhost/trireme-test:cpu-triton"
#: The stand-in's distribution, as ubuntu:24.04 is that of NVIDIA's image.
BASE = "docker.io/library/debian:bookworm-slim"


@pytest.fixture(scope="module")
def cpu_triton_image() -> Iterator[str]:
    if not has_image(STAND_IN):
        pytest.skip(f"there is no {STAND_IN}: nothing stands in for NVIDIA's image")
    build_image(f"TRITON={STAND_IN}", f"BASE_IMAGE={BASE}", f"IMAGE={IMAGE}")
    yield IMAGE
    podman("rmi", "--force", IMAGE)


@pytest.mark.timeout(1200)
def test_the_demo_answers_with_the_other_images_triton(cpu_triton_image: str, demo: Path, cat: bytes) -> None:
    with running_container(cpu_triton_image, demo, "--read-only", wait_until_ready=False) as box:
        # The build itself fails if a library is missing. The wheel's server is not installed, and no part for GPUs.
        code = (
            "import importlib.util, json, pathlib\n"
            "root = pathlib.Path('/opt/tritonserver')\n"
            "print(json.dumps([importlib.util.find_spec('pytriton') is None, sorted(p.name for p in root.iterdir()),"
            " sorted(p.name for p in (root / 'backends').iterdir())]))"
        )
        without_wheel, parts, backends = json.loads(box.python(code))
        assert without_wheel
        assert parts == ["TRITON_VERSION", "backends", "bin", "lib", "system"]
        assert backends == ["python"]  # the stand-in has no others
        wait_until(lambda: box.ping() == 200, 280, description="/ping 200")
        assert "cat" in box.send(cat, "image/png", "resnet").json()["result"][0]
