"""pytest collects every test file that is on disk."""

from __future__ import annotations

import subprocess
import sys

from sm.settings import HERE


def test_every_test_file_on_disk_is_collected() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    completed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
    collected = {line.partition("::")[0] for line in completed.stdout.splitlines() if "::" in line}
    on_disk = {str(path.relative_to(HERE)) for path in (HERE / "tests").rglob("test_*.py")}
    assert on_disk - collected == set(), "pytest does not see these files"
