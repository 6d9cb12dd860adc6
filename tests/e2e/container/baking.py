"""Build an image with models inside."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from sm.settings import HERE
from tests.e2e.container.tokenizing import TEXT, TOKENS, write_client
from tests.support.containers import build_flags, podman, write_team_repository

TEAM = "localhost/trireme-test:team"


def make_image(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``make image``. The stages without models are those of the image that all tests share."""
    command = ["make", "image", "ENGINE=podman", f"BUILD_FLAGS={build_flags()}", *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


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
    done = make_image(f"IMAGE={TEAM}", f"MODELS={archive}")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    yield TEAM
    podman("rmi", "--force", TEAM)
