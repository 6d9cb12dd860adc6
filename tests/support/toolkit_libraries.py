"""torch, scikit-learn and XGBoost, which are the team's and never the box's, in a folder of their own.

They take a gigabyte and a minute, so tests use them where they lie already, and install them only where
``TRIREME_TEST_LIBRARIES`` asks for it, as ``make test-all`` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm.plugins.toolkit import requirements

CACHE = Path.home() / ".cache" / "trireme" / "test-libraries"
WANTED = "torch==2.13.0\nscikit-learn==1.9.1\nxgboost-cpu==3.2.0\n"


def folder() -> Path:
    """Where they are installed, in the box's own way; skips the test where they are not."""
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / requirements.REQUIREMENTS_FILE
    if not file.is_file() or file.read_text() != WANTED:
        file.write_text(WANTED)
    found = CACHE / "requirements" / requirements.requirements_digest(file)
    if not found.is_dir() and os.environ.get("TRIREME_TEST_LIBRARIES") != "true":
        pytest.skip("torch, scikit-learn and XGBoost are not installed: TRIREME_TEST_LIBRARIES=true does it")
    return requirements.ensure_installed(file, CACHE, CACHE)


def run(script: Path, *arguments: object) -> str:
    """What a Python script prints that may import them. They never come into the tests' own process."""
    # Behind the box's own packages, as the box has them.
    start = f"import runpy, site, sys; site.addsitedir({str(folder())!r}); sys.argv = sys.argv[1:]"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        f"{start}; runpy.run_path(sys.argv[0], run_name='__main__')",
    ]
    done = subprocess.run(
        [*command, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
