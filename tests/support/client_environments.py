"""Virtual environments with clients of other systems, which tests run against a box.

They take minutes and hundreds of megabytes. So tests use them if they are there, and make them only if
``TRIREME_TEST_LIBRARIES=true``, as ``make test-all`` sets it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HOME = Path.home() / ".cache" / "trireme" / "test-clients"
TIMEOUT_S = 1200


def python_with(*requirements: str) -> Path:
    """Return the Python of an environment with these packages alone. Skips the test if it has to be made."""
    folder = HOME / hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:16]
    if not folder.is_dir():
        _ask_to_make(", ".join(requirements))
        HOME.mkdir(parents=True, exist_ok=True)
        # A venv does not mind being moved: it is called by the path of its Python.
        with tempfile.TemporaryDirectory(dir=HOME) as made:
            subprocess.run([sys.executable, "-m", "venv", f"{made}/env"], check=True, timeout=TIMEOUT_S)
            install = [f"{made}/env/bin/python", "-m", "pip", "install", "-q", *requirements]
            subprocess.run(install, check=True, timeout=TIMEOUT_S)
            Path(made, "env").rename(folder)
    return folder / "bin" / "python"


def node_folder_with(*packages: str) -> Path:
    """Return a folder whose ``node_modules`` has these packages of npm. Skips the test if it has to be made."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = HOME / hashlib.sha256("\n".join(("npm", *packages)).encode()).hexdigest()[:16]
    if not folder.is_dir():
        _ask_to_make(", ".join(packages))
        HOME.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME) as made:
            install = ["npm", "install", "--no-audit", "--no-fund", *packages]
            (Path(made) / "env").mkdir()
            subprocess.run(install, cwd=f"{made}/env", check=True, timeout=TIMEOUT_S)
            Path(made, "env").rename(folder)
    return folder


def _ask_to_make(names: str) -> None:
    if os.environ.get("TRIREME_TEST_LIBRARIES") != "true":
        pytest.skip(f"{names} are not installed: TRIREME_TEST_LIBRARIES=true does it")


def run(command: list[str | Path], source: str, url: str, **environment: str) -> Any:
    """Run a script with the box's address as its argument; return what it printed last, as JSON."""
    names = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], **environment}
    completed = subprocess.run(
        [*map(str, command), source, url], capture_output=True, text=True, timeout=300, env=names, check=False
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return json.loads(completed.stdout.splitlines()[-1])
