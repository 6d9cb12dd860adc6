"""The image's GPU flavour, built on a stand-in for NVIDIA's image."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sm.settings import HERE
from tests.support.containers import build_flags

#: NVIDIA's users, folders, Python packages, environment and entry point, without CUDA, TensorRT and a GPU.
STAND_IN = "localhost/lab/tritonserver:stand-in"
IMAGE = "localhost/trireme-test:gpu"


@pytest.fixture(scope="session")
def gpu_image() -> str:
    """Build the GPU flavour with the documented command, and return its name."""
    if (
        shutil.which("podman") is None
        or subprocess.run(["podman", "image", "exists", STAND_IN], check=False).returncode
    ):
        pytest.skip(f"there is no {STAND_IN}: nothing stands in for NVIDIA's image")
    options = (f"BASE_IMAGE={STAND_IN}", f"IMAGE={IMAGE}", f"BUILD_FLAGS={build_flags()}")
    command = ["make", "image", "ENGINE=podman", *options]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return IMAGE
