"""``sm check-client`` as a team runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.settings import HERE


@dataclass(frozen=True)
class Checked:
    """What it said with ``--json``, and how it ended."""

    status: int
    report: dict[str, Any]

    @property
    def sentences(self) -> dict[str, str]:
        return {row["check"]: row["sentence"] for row in self.report["checks"]}

    @property
    def failed(self) -> dict[str, str]:
        return {row["check"]: row["sentence"] for row in self.report["checks"] if row["passed"] is False}

    @property
    def stages(self) -> dict[str, float]:
        return dict(self.report["stages_ms"])


def sm(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, in the folder ``home``."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SAGEMAKER", "TRIREME"))
    }
    return subprocess.run(
        [sys.executable, "-m", "sm.cli", *words],
        env={**clean, "PYTHONPATH": str(HERE)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def check(home: Path, name: str, *options: str) -> Checked:
    """Check one client of ``home/clients``."""
    done = sm(home, "check-client", name, "--json", *options)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return Checked(done.returncode, json.loads(done.stdout))
