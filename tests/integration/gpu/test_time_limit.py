"""A stage that exceeds its time limit leaves no process behind, not even in another session."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.gpu.stages import run_limited

STARTS_A_CHILD = """
import subprocess, time
print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, flush=True)
time.sleep(300)
"""


def test_processes_of_a_stage_end_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_limited((sys.executable, "-c", STARTS_A_CHILD), 2, log) == "took longer than 2 s"
    child_pid = int(log.read_text().split()[0])
    assert not Path(f"/proc/{child_pid}").exists()


def test_a_failed_stage_reports_its_exit_status(tmp_path: Path) -> None:
    assert run_limited((sys.executable, "-c", "raise SystemExit(3)"), 60, tmp_path / "log") == "ended with 3"
