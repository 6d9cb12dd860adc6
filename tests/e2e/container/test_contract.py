"""The executable contract against the images: the same rows as against a box that ``make serve`` starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.contract.own import BODY, VARIABLES, write_served
from tests.support.containers import running_container

INSIDE = "/opt/ml/models"


def make_readable(folder: Path) -> None:
    """Let everybody read a folder: a test's files are private, and the container has another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def check_promises(folder: Path, image: str, mode: str) -> None:
    archives, repository, options = write_served(mode, folder), None, []
    flags = [part for variable in VARIABLES[mode].items() for part in ("-e", "=".join(variable))]
    if mode == "mme":
        flags += ["-v", f"{archives.home}:{INSIDE}:ro", "--shm-size", "256m"]
        options = ["--model-dir", f"{archives.home}:{INSIDE}"]
    else:
        repository = folder / "model"
    make_readable(folder)
    (folder / "body.json").write_bytes(BODY)
    table = folder / "table.json"
    with running_container(image, repository, *flags) as box:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract"]
        command += ["--url", box.url, "--mode", mode, "--body", str(folder / "body.json"), *options]
        command += ["--contract-json", str(table)]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        assert box.stop() == 0
    assert done.returncode == 0, done.stdout[-6000:]
    states = [row["state"] for row in json.loads(table.read_text())["rows"]]
    assert {*states} <= {"has", "not asked"} and states.count("has") > 5


@pytest.mark.parametrize(
    "mode", ["single", *(pytest.param(mode, marks=pytest.mark.exhaustive) for mode in ("batch", "mme"))]
)
def test_a_container_keeps_every_promise_of_the_contract(image: str, tmp_path: Path, mode: str) -> None:
    check_promises(tmp_path, image, mode)


@pytest.mark.exhaustive
def test_the_gpu_flavour_keeps_every_promise_of_the_contract(gpu_image: str, tmp_path: Path) -> None:
    check_promises(tmp_path, gpu_image, "single")
