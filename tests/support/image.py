"""The image, built once, and the container of it that most tests share."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from sm.tools.build.prepare import prepare
from tests.support.containers import IMAGE, Container, build_flags, container


@pytest.fixture(scope="session")
def image() -> str:
    """The CPU image as the documented command builds it."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: the image is neither built nor run")
    command = ["make", "image", "ENGINE=podman", f"IMAGE={IMAGE}", f"BUILD_FLAGS={build_flags()}"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return IMAGE


@pytest.fixture(scope="session")
def demo() -> Path:
    """The CPU repository of the three demo models, built if it is not there yet."""
    settings = Settings.read({})
    prepare(settings)
    return settings.cache / "repository" / "cpu"


@pytest.fixture(scope="session")
def shared(image: str, demo: Path) -> Iterator[Container]:
    """A container with the demo models and Docker's own 64 MB of shared memory; no test may break it."""
    with container(image, demo, "--shm-size", "64m") as started:
        yield started


@pytest.fixture(scope="session")
def cat() -> bytes:
    """scikit-image's Chelsea, a PNG."""
    return (HERE / "clients" / "resnet" / "sample" / "cat.png").read_bytes()


@pytest.fixture(scope="session")
def street(demo: Path) -> bytes:
    """A JPEG of a street with a bus."""
    return (demo.parents[1] / "pictures" / "bus.jpg").read_bytes()
