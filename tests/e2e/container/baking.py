"""Build an image with models inside, and one of the GPU flavour on a stand-in for NVIDIA's image."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator

import pytest

from tests.e2e.container.tokenizing import TEXT, TOKENS, write_client
from tests.support.containers import build_image, has_image, podman, write_team_repository

TEAM, GPU = "localhost/trireme-test:team", "localhost/trireme-test:gpu"
#: NVIDIA's users, folders, Python packages, environment and entry point, without CUDA, TensorRT and a GPU.
STAND_IN = "localhost/lab/tritonserver:stand-in"


@pytest.fixture(scope="session")
def team_image(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with the models of an archive whose files only their owner may read."""
    folder = tmp_path_factory.mktemp("baked")
    repository = write_client(write_team_repository(folder / "repository"))
    sample = repository / "code" / "tokens" / "sample"
    sample.mkdir()
    (sample / "payload.json").write_text(json.dumps({"text": TEXT}))
    (sample / "golden.json").write_text(json.dumps(TOKENS))
    for path in repository.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    archive = folder / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(repository, ".")
    build_image(f"IMAGE={TEAM}", f"MODELS={archive}")
    yield TEAM
    podman("rmi", "--force", TEAM)


@pytest.fixture(scope="session")
def gpu_image() -> str:
    """Build the GPU flavour with the documented command, and return its name."""
    if not has_image(STAND_IN):
        pytest.skip(f"there is no {STAND_IN}: nothing stands in for NVIDIA's image")
    build_image(f"BASE_IMAGE={STAND_IN}", f"IMAGE={GPU}")
    return GPU
