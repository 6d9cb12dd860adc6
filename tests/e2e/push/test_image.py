"""The real CPU image, pushed to a real registry and pulled from there, serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.containers import IMAGE, running_container, write_team_repository
from tests.support.image import image  # noqa: F401  (a fixture: their build is this one)
from tests.support.push_checkout import Checkout, podman


@pytest.mark.usefixtures("image")
@pytest.mark.exhaustive  # builds the image; test_push.py pushes and pulls a small one
def test_the_real_image_serves_after_a_push_and_a_pull(pushing: Checkout, tmp_path: Path) -> None:
    pushing.dockerfile(f"FROM {IMAGE}")
    pushing.commit()
    done = pushing.push()
    assert done.returncode == 0, done.stderr
    pushed, digest = done.stdout.strip().split("@")
    podman("rmi", "--force", pushed, f"trireme:{pushing.tag}")
    by_digest = f"{pushed.rpartition(':')[0]}@{digest}"
    podman("pull", "--quiet", by_digest, env=pushing.env)
    with running_container(by_digest, write_team_repository(tmp_path / "model")) as box:
        answer = box.send(b"four", "text/plain")
        assert answer.json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
