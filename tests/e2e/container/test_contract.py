"""The executable contract against the image: the same rows as against a box that ``make serve`` starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.contract.own import BODY
from tests.support.containers import running_container
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.tritons import MODELS

BATCH = ("-e", "SAGEMAKER_BATCH=true", "-e", "SAGEMAKER_BATCH_STRATEGY=MULTI_RECORD")
SINGLE = ("-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo", "-e", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
INSIDE = "/opt/ml/models"


def promises_by_state(folder: Path, url: str, *options: str) -> dict[str, list[str]]:
    """Run the contract against a container. Return its promises by their state."""
    (folder / "body.json").write_bytes(BODY)
    table = folder / "table.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", "--url", url]
    contract_options = ["--body", str(folder / "body.json"), "--contract-json", str(table), *options]
    done = subprocess.run(
        [*command, *contract_options], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    promises: dict[str, list[str]] = {}
    for row in json.loads(table.read_text())["rows"]:
        promises.setdefault(row["state"], []).append(row["promise"])
    return promises


def write_models(folder: Path) -> Path:
    for name in ("counts", "echo"):
        MODELS[name].write(folder / "model" / name)
    make_readable(folder)
    return folder / "model"


def make_readable(folder: Path) -> None:
    """Let everybody read a folder: a test's files are private, and the container has another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize(
    ("mode", "flags"),
    [("single", SINGLE), pytest.param("batch", BATCH, marks=pytest.mark.exhaustive)],
)
def test_a_container_keeps_every_promise_of_the_contract(
    image: str, tmp_path: Path, mode: str, flags: tuple[str, ...]
) -> None:
    with running_container(
        image, write_models(tmp_path), *flags, "-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo"
    ) as box:
        promises = promises_by_state(tmp_path, box.url, "--mode", mode)
    assert set(promises) <= {"has", "not asked"}, promises
    assert len(promises["has"]) > 5


@pytest.mark.exhaustive
def test_a_multi_model_container_keeps_every_promise_of_the_contract(image: str, tmp_path: Path) -> None:
    platform = ArchiveFolder(tmp_path / "archives")
    platform.write_flat("flat")
    platform.write_nested(
        "nested",
        {
            "first": multiplying_model(2),
            "second": multiplying_model(3),
            "both": chain_config("first", "second"),
        },
    )
    make_readable(tmp_path)
    flags = ("-e", "SAGEMAKER_MULTI_MODEL=true", "-v", f"{platform.home}:{INSIDE}:ro", "--shm-size", "256m")
    with running_container(image, None, *flags) as box:
        promises = promises_by_state(
            tmp_path, box.url, "--mode", "mme", "--model-dir", f"{platform.home}:{INSIDE}"
        )
    assert set(promises) <= {"has", "not asked"}, promises
    assert len(promises["has"]) > 5
