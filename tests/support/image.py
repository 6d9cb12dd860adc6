"""Fixtures: the image, built once, and a picture for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.containers import IMAGE, build_flags


@pytest.fixture(scope="session")
def image() -> str:
    """Build the CPU image with the documented command, and return its name."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: the image is neither built nor run")
    command = ["make", "image", "ENGINE=podman", f"IMAGE={IMAGE}", f"BUILD_FLAGS={build_flags()}"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return IMAGE


@pytest.fixture(scope="session")
def street(demo: Path) -> bytes:
    """A JPEG of a street with a bus."""
    return (demo.parents[1] / "pictures" / "bus.jpg").read_bytes()
