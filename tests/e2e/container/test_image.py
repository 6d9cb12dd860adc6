"""The image as an engine sees it, and its commands with mounted models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm import __version__
from sm.settings import HERE
from tests.support.containers import BASE, PYTHON, build_flags, podman


def test_the_labels_describe_the_image_and_what_the_platform_may_use(image: str) -> None:
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", image))
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
    for capability in ("accept-bind-to-port", "bidirectional-streaming", "multi-models"):
        assert labels[f"com.amazonaws.sagemaker.capabilities.{capability}"] == "true"
    described = {"revision": git.stdout.strip(), "title": "trireme-serving", "version": __version__}
    for name, value in described.items():
        assert labels[f"org.opencontainers.image.{name}"] == value
    assert "org.opencontainers.image.source" in labels


def test_the_image_builds_and_inspects_a_model(image: str, demo: Path, tmp_path: Path) -> None:
    # With --user, as on the page: the written files belong to the caller.
    mounts = ("-v", f"{demo}:/opt/ml/model:ro", "-v", f"{tmp_path}:/out")
    flags = (*mounts, "--user", f"{os.getuid()}:{os.getgid()}")
    source = "/opt/ml/model/resnet/1/model.onnx"
    words = ["build-model", "resnet", "--target", "cpu", "--source", source, "--out", "/out"]
    podman("run", "--rm", "--network", "none", *flags, image, *words, timeout=120)
    row = podman("run", "--rm", *flags, image, "inspect", "/out").splitlines()[1].split()
    assert row[:3] == ["resnet", "python", "1"]


def test_the_image_adds_less_than_840_mb_to_its_base(image: str) -> None:
    # About 790 MB with the published debian:trixie-slim, which has 79 MB. A base that is built locally is larger.
    sizes = [int(podman("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE)]
    assert sizes[0] - sizes[1] < 840e6


def test_the_image_has_no_build_tools_and_no_caches(image: str) -> None:
    code = (
        "import importlib.util as i, pathlib, shutil\n"
        "print([m for m in ('pip', 'setuptools', 'torch', 'hf_xet', 'pytest') if i.find_spec(m)],"
        " [p for p in ('gcc', 'make', 'git', 'pip3') if shutil.which(p)],"
        " [str(p) for p in (pathlib.Path.home() / '.cache', pathlib.Path('/tmp')) if p.exists() and any(p.iterdir())])"
    )
    # As root, who may read everything.
    assert podman("run", "--rm", "--user", "0", "--entrypoint", PYTHON, image, "-c", code) == "[] [] []"


@pytest.mark.exhaustive
def test_any_user_may_read_the_image_of_a_private_checkout(image: str, tmp_path: Path) -> None:
    """Serverless endpoints run it as a user of theirs. The first layers are those of ``image``."""
    names = ("Dockerfile", "locks", "serve", "nginx.conf", "sm", "extensions", "model", "clients")
    for name in names:
        copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
        copy(HERE / name, tmp_path / name)
    for name in names[2:]:
        for path in (tmp_path / name, *(tmp_path / name).rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
    private = f"{image}-private"
    flags = build_flags().split()
    podman(
        *("build", "--build-arg", f"BASE_IMAGE={BASE}", *flags, "--tag", private, str(tmp_path)), timeout=280
    )
    find = ("--entrypoint", "find", private, "/opt/trireme", "!", "-readable")
    assert podman("run", "--rm", "--user", "12345", *find) == ""
    podman("rmi", private)
