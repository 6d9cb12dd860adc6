"""Run ``sm check-client`` as a command, and read its report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.sm_command import run_sm


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


def check_client(folder: Path, name: str, *options: str) -> CheckResult:
    """Run ``sm check-client`` for one client in ``folder/clients``."""
    completed = run_sm("check-client", name, "--json", *options, cwd=folder)
    assert completed.stdout.startswith("{"), completed.stdout + completed.stderr
    return CheckResult(completed.returncode, json.loads(completed.stdout))
