"""Run ruff and mypy with this project's settings on code that a command wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sm.settings import HERE


def assert_clean(folder: Path, *files: Path) -> None:
    """Lint and format-check a folder, and type-check some of its files together."""
    config = ("--config", HERE / "pyproject.toml")
    for command in (
        ("ruff", "check", *config, folder),
        ("ruff", "format", "--check", *config, folder),
        ("mypy", *files),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], cwd=HERE, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
