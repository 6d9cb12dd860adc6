"""In CI a failed test runs once more, a unit test does not, and a run with more than three reruns fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE

#: Fails at its first run and passes at the second.
FLAKY = """
import pytest
from pathlib import Path

@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    seen = Path(__file__).with_name(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError
"""


def run_in_ci(folder: Path, kind: str, flaky_tests: int) -> tuple[int, list[str]]:
    """Run flaky tests in a second process. Returns the exit status and the last lines of the output."""
    (folder / "tests" / kind).mkdir(parents=True)
    (folder / "tests" / kind / "test_flaky.py").write_text(FLAKY.format(count=flaky_tests))
    (folder / "pytest.ini").write_text("[pytest]\n")
    conftest = (HERE / "tests" / "conftest.py").read_text()
    (folder / "tests" / "conftest.py").write_text(conftest.replace("RERUN_DELAY_S = 10", "RERUN_DELAY_S = 0"))
    plugins = ["-p", "xdist.plugin", "-p", "pytest_rerunfailures", "-p", "no:cacheprovider"]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", "1", f"--rootdir={folder}", str(folder / "tests")],
        cwd=HERE,
        env={**os.environ, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return completed.returncode, completed.stdout.splitlines()


@pytest.mark.exhaustive
def test_a_failed_test_runs_once_more_and_is_listed_last(tmp_path: Path) -> None:
    status, output = run_in_ci(tmp_path, "integration", 3)
    assert status == 0, output
    assert sorted(output[-4:-1]) == [
        f"ran again: tests/integration/test_flaky.py::test_flaky[{number}]" for number in range(3)
    ]
    assert output[-1].count("3 passed") == output[-1].count("3 rerun") == 1


@pytest.mark.exhaustive
def test_more_than_three_reruns_fail_the_run(tmp_path: Path) -> None:
    status, output = run_in_ci(tmp_path, "e2e", 4)
    assert status == 1
    assert "4 reruns; a run of the tests may have 3" in output
    assert "4 passed" in output[-1]


@pytest.mark.exhaustive
def test_a_unit_test_does_not_run_again(tmp_path: Path) -> None:
    status, output = run_in_ci(tmp_path, "unit", 1)
    assert status == 1
    assert "1 failed" in output[-1]
