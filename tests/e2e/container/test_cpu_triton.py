"""The CPU flavour with the Triton of NVIDIA's image, taken out of the stand-in for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import wait_until
from tests.support.containers import build_flags, podman, running_container
from tests.support.gpu_image import STAND_IN

pytestmark = pytest.mark.exhaustive
IMAGE = "localhost/trireme-test:cpu-triton"
#: The stand-in's distribution, as ubuntu:24.04 is that of NVIDIA's image.
BASE = "docker.io/library/debian:bookworm-slim"


@pytest.fixture(scope="module")
def cpu_triton_image() -> Iterator[str]:
    if (
        shutil.which("podman") is None
        or subprocess.run(["podman", "image", "exists", STAND_IN], check=False).returncode
    ):
        pytest.skip(f"there is no {STAND_IN}: nothing stands in for NVIDIA's image")
    options = (f"TRITON={STAND_IN}", f"BASE_IMAGE={BASE}", f"IMAGE={IMAGE}")
    command = ["make", "image", "ENGINE=podman", *options, f"BUILD_FLAGS={build_flags()}"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
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
