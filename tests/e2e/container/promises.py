"""Run the executable contract against a container, and write models that its user can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sm.settings import HERE
from tests.contract.own import BODY
from tests.support.tritons import MODELS


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
