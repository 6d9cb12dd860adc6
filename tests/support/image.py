"""Fixtures: the image, built once, and a picture for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.containers import IMAGE, build_image


@pytest.fixture(scope="session")
def image() -> str:
    """Build the CPU image with the documented command, and return its name."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: the image is neither built nor run")
    build_image(f"IMAGE={IMAGE}")
    return IMAGE


@pytest.fixture(scope="session")
def street(demo: Path) -> bytes:
    """A JPEG of a street with a bus."""
    return (demo.parents[1] / "pictures" / "bus.jpg").read_bytes()
