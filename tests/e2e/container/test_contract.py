"""The executable contract against the image: the same rows as against a box that ``make serve`` starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.contract.own import BODY
from tests.support.containers import container
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.tritons import MODELS

BATCH = ("-e", "SAGEMAKER_BATCH=true", "-e", "SAGEMAKER_BATCH_STRATEGY=MULTI_RECORD")
SINGLE = ("-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo", "-e", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
INSIDE = "/opt/ml/models"


def states(folder: Path, url: str, *options: str) -> dict[str, list[str]]:
    """The contract's promises by what has become of them."""
    (folder / "body.json").write_bytes(BODY)
    table = folder / "table.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", "--url", url]
    more = ["--body", str(folder / "body.json"), "--contract-json", str(table), *options]
    done = subprocess.run([*command, *more], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    found: dict[str, list[str]] = {}
    for row in json.loads(table.read_text())["rows"]:
        found.setdefault(row["state"], []).append(row["promise"])
    return found


def models(folder: Path) -> Path:
    for name in ("counts", "echo"):
        MODELS[name].write(folder / "model" / name)
    readable(folder)
    return folder / "model"


def readable(folder: Path) -> None:
    """Made by a test, whose files nobody else may read: the container's user may be another one."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize(("mode", "flags"), [("single", SINGLE), ("batch", BATCH)])
def test_a_container_keeps_every_promise(
    image: str, tmp_path: Path, mode: str, flags: tuple[str, ...]
) -> None:
    with container(image, models(tmp_path), *flags, "-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo") as box:
        found = states(tmp_path, box.url, "--mode", mode)
    assert set(found) <= {"has", "not asked"}, found
    assert len(found["has"]) > 5


@pytest.mark.exhaustive
def test_a_multi_model_container_keeps_every_promise(image: str, tmp_path: Path) -> None:
    platform = ArchiveFolder(tmp_path / "archives")
    platform.flat("flat")
    platform.nested(
        "nested",
        {
            "first": multiplying_model(2),
            "second": multiplying_model(3),
            "both": chain_config("first", "second"),
        },
    )
    readable(tmp_path)
    flags = ("-e", "SAGEMAKER_MULTI_MODEL=true", "-v", f"{platform.home}:{INSIDE}:ro", "--shm-size", "256m")
    with container(image, None, *flags) as box:
        found = states(tmp_path, box.url, "--mode", "mme", "--model-dir", f"{platform.home}:{INSIDE}")
    assert set(found) <= {"has", "not asked"}, found
    assert len(found["has"]) > 5
