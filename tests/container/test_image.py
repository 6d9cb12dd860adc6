"""What the image says of itself, what is in it and what is not."""

from __future__ import annotations

import json
import subprocess

from sm.settings import HERE
from tests.container.running import PYTHON, podman


def test_the_labels_tell_the_platform_and_people_what_it_is(image: str) -> None:
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", image))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    )
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.multi-models"] == "true"
    assert labels["org.opencontainers.image.revision"] == commit.stdout.strip()
    assert {"org.opencontainers.image.version", "org.opencontainers.image.source"} <= set(labels)


def test_the_words_of_the_command_line_are_known(image: str) -> None:
    assert "SAGEMAKER_BIND_TO_PORT" in podman("run", "--rm", image, "settings")


def test_it_adds_less_than_625_mb_to_its_base(image: str) -> None:
    # Under 700 MB with the published debian:bookworm-slim, which has 75; one made here is larger.
    sizes = [int(podman("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE)]
    assert sizes[0] - sizes[1] < 625e6


def test_nothing_that_only_builds_is_left_in_it(image: str) -> None:
    code = (
        "import importlib.util as i, pathlib, shutil\n"
        "print([m for m in ('pip', 'setuptools', 'torch', 'huggingface_hub', 'pytest') if i.find_spec(m)],"
        " [p for p in ('gcc', 'make', 'git', 'pip3') if shutil.which(p)],"
        " [str(p) for p in (pathlib.Path('/root/.cache'), pathlib.Path('/tmp')) if p.exists() and any(p.iterdir())])"
    )
    assert podman("run", "--rm", "--entrypoint", PYTHON, image, "-c", code) == "[] [] []"


BASE = "docker.io/library/debian:bookworm-slim"
