"""The command for a machine with a GPU: the processes of its stages, and the programs that it brings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import bundle
from bench.gpu.__main__ import main, run_limited
from bench.gpu.rows import write_row

STARTS_A_CHILD = """
import subprocess, sys, time
print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, file=sys.stderr, flush=True)
time.sleep(300)
"""


def test_processes_of_a_stage_end_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_limited((sys.executable, "-c", STARTS_A_CHILD), 2, log) == "took longer than 2 s"
    child_pid = int(log.read_text().split()[0])
    assert not Path(f"/proc/{child_pid}").exists()
    assert run_limited((sys.executable, "-c", "raise SystemExit(3)"), 60, log) == "ended with 3"


def test_results_are_lines_of_json(tmp_path: Path) -> None:
    for row, difference in (("json", 0.25), ("raw", 0.5)):
        write_row(tmp_path, "answers", row, difference=difference)
    _, last = (tmp_path / "gpu.jsonl").read_text().splitlines()
    assert json.loads(last) == {"stage": "answers", "row": "raw", "difference": 0.5}


def test_a_machine_without_torch_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIREME_GPU_UNPACKED", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "work" / "python").mkdir(parents=True)  # as unpacked before
    with pytest.raises(SystemExit, match="torch"):
        main(["--bundle", str(tmp_path), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")])


def test_the_packed_programs_run_with_their_own_libraries(tmp_path: Path) -> None:
    bundle.collect_programs(tmp_path / "programs")
    for program in ("nginx", "wrk"):
        file = tmp_path / "programs" / "bin" / program
        completed = subprocess.run((file, "-v"), capture_output=True, text=True, check=False, timeout=20)
        assert program in completed.stderr + completed.stdout
