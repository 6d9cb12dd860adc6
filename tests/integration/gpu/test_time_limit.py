"""A stage that takes too long leaves no process behind, in whatever session it is."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gpu.stages import run_limited

STARTS_A_BOX = """
import subprocess, time
print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, flush=True)
time.sleep(300)
"""


def test_what_a_stage_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_limited((sys.executable, "-c", STARTS_A_BOX), 2, log) == "took longer than 2 s"
    started = int(log.read_text().split()[0])
    assert not Path(f"/proc/{started}").exists()


def test_a_stage_that_ends_says_how(tmp_path: Path) -> None:
    assert run_limited((sys.executable, "-c", "raise SystemExit(3)"), 60, tmp_path / "log") == "ended with 3"
