"""torch, scikit-learn, XGBoost and transformers: the team's and never the box's, in folders of their own.

They take a gigabyte and a minute, so tests use them where they lie already, and install them only where
``TRIREME_TEST_LIBRARIES`` asks for it, as ``make test-all`` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.plugins.toolkit import requirements

CACHE = Path.home() / ".cache" / "trireme" / "test-libraries"
#: Before the packages of ``folder`` come the box's own, as in the box.
START = "import site, sys; site.addsitedir({folder!r}); sys.argv = sys.argv[1:]"


@dataclass(frozen=True)
class Libraries:
    """What a test needs. ``names``: as a skip says them; ``wanted``: the requirements; ``home``: the cache."""

    names: str
    wanted: str
    home: Path

    def folder(self) -> Path:
        """Where they are installed, in the box's own way; skips the test where they are not."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / requirements.REQUIREMENTS_FILE
        if not file.is_file() or file.read_text() != self.wanted:
            file.write_text(self.wanted)
        found = self.home / "requirements" / requirements.requirements_digest(file)
        if not found.is_dir() and os.environ.get("TRIREME_TEST_LIBRARIES") != "true":
            pytest.skip(f"{self.names} are not installed: TRIREME_TEST_LIBRARIES=true does it")
        return requirements.ensure_installed(file, self.home, self.home)

    def run(self, script: Path, *arguments: object) -> str:
        """What a Python script prints that may import them. They never come into the tests' own process."""
        start = START.format(folder=str(self.folder()))
        code = f"import runpy; {start}; runpy.run_path(sys.argv[0], run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(script), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write_sm(self, file: Path) -> None:
        """Write an ``sm`` that may import them."""
        file.write_text(
            f"#!{sys.executable}\nimport site, sys\nsite.addsitedir({str(self.folder())!r})\n"
            "from sm.cli import main\nsys.exit(main())\n"
        )
        file.chmod(0o755)


TOOLKIT = Libraries(
    "torch, scikit-learn and XGBoost",
    "torch==2.13.0\nscikit-learn==1.9.1\nxgboost-cpu==3.2.0\n",
    CACHE,
)
#: What exports a checkpoint of Hugging Face's.
EXPORT = Libraries(
    "torch and transformers",
    "torch==2.13.0\ntransformers==5.23.0\nonnxscript==0.7.2\n",
    CACHE / "export",
)
