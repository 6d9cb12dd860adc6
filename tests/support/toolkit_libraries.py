"""Install torch, scikit-learn, XGBoost and transformers into folders outside the virtual environment.

They take a gigabyte and a minute. So tests use them if they are installed, and install them only if
``TRIREME_TEST_LIBRARIES=true``, as ``make test-all`` sets it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from sm.plugins import code_imports
from sm.repository.models import REQUIREMENTS_FILE

CACHE = Path.home() / ".cache" / "trireme" / "test-libraries"


class Libraries(NamedTuple):
    """Libraries that a test needs: their names for a skip's reason, their requirements.txt and their folder."""

    names: str
    requirements_text: str
    home: Path

    def folder(self) -> Path:
        """Return the folder of the installed packages. Skips the test if they are not installed."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / REQUIREMENTS_FILE
        if not file.is_file() or file.read_text() != self.requirements_text:
            file.write_text(self.requirements_text)
        found = self.home / "requirements" / code_imports.requirements_digest(file)
        if not found.is_dir() and os.environ.get("TRIREME_TEST_LIBRARIES") != "true":
            pytest.skip(f"{self.names} are not installed: TRIREME_TEST_LIBRARIES=true does it")
        return code_imports.ensure_installed(file, self.home, self.home)

    def _start(self) -> str:
        """Code that adds the packages after the box's own packages, as the box does."""
        return f"import runpy, site, sys\nsite.addsitedir({str(self.folder())!r})\n"

    def run(self, script: Path, *arguments: object) -> str:
        """Run a Python script that imports them in a process of its own, and return what it prints."""
        code = f"{self._start()}sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        command = [sys.executable, "-W", "ignore", "-c", code, str(script), *map(str, arguments)]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def write_sm(self, file: Path) -> None:
        """Write an ``sm`` command that can import them."""
        file.write_text(f"#!{sys.executable}\n{self._start()}from sm.cli import main\nsys.exit(main())\n")
        file.chmod(0o755)


TOOLKIT = Libraries(
    "torch, scikit-learn and XGBoost", "torch==2.13.0\nscikit-learn==1.9.1\nxgboost-cpu==3.2.0\n", CACHE
)
#: The libraries that export a Hugging Face checkpoint.
EXPORT = Libraries(
    "torch and transformers", "torch==2.13.0\ntransformers==5.23.0\nonnxscript==0.7.2\n", CACHE / "export"
)
