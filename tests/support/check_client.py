"""Run ``sm check-client`` as a command, and read its report."""

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
class CheckResult:
    """The exit status and the JSON report of ``sm check-client``."""

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


def run_sm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sm`` in ``folder`` without this process's settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SAGEMAKER", "TRIREME"))
    }
    return subprocess.run(
        [sys.executable, "-m", "sm.cli", *arguments],
        env={**environment, "PYTHONPATH": str(HERE)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def check_client(folder: Path, name: str, *options: str) -> CheckResult:
    """Run ``sm check-client`` for one client in ``folder/clients``."""
    completed = run_sm(folder, "check-client", name, "--json", *options)
    assert completed.stdout.startswith("{"), completed.stdout + completed.stderr
    return CheckResult(completed.returncode, json.loads(completed.stdout))
