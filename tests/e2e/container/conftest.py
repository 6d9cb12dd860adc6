"""The image, built once, and the container of it that most tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.container.baking import gpu_image, team_image
from tests.e2e.container.shared_models import write_shared_models
from tests.support.box_fixture import boxes
from tests.support.containers import Container, running_container
from tests.support.demo_box import cat, demo
from tests.support.image import image, street

__all__ = ["boxes", "cat", "demo", "gpu_image", "image", "street", "team_image"]

HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


@pytest.fixture(scope="session")
def shared_container(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A locked-down container with Docker's default 64 MB of shared memory; no test may break it."""
    repository = write_shared_models(tmp_path_factory.mktemp("shared"))
    flags = (*HARDENED, "--shm-size", "64m", "-e", "TRIREME_INSTALL_REQUIREMENTS=true")
    with running_container(image, repository, *flags) as started:
        yield started
