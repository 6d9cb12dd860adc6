"""After a failed test its fixtures are set up again before another test uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sm.settings import HERE

CONFTEST = """
import itertools
import pytest
from tests.support.fresh_fixtures import FreshFixtures

NUMBERS = itertools.count(1)


def pytest_configure(config):
    config.pluginmanager.register(FreshFixtures())


@pytest.fixture(scope="session")
def number():
    made = next(NUMBERS)
    print(f"made {made}")
    yield made
    print(f"ended {made}")


@pytest.fixture(scope="module")
def box(number):
    return [number]


@pytest.fixture
def whole(box):
    yield box
    assert "harm" not in box


@pytest.fixture(scope="module")
def unready(number):
    print("tried")
    raise OSError("no such luck")
"""
PASSES_AT_THE_SECOND_RUN = """
def test_breaks_the_first(box):
    box.append("broken")
    assert box == [2, "broken"]

def test_has_the_second(box):
    assert box == [2, "broken"]
"""
FAILS_ONCE = """
def test_breaks_the_first(box):
    box.append("broken")
    raise AssertionError

def test_has_the_second(box):
    assert box == [2]
"""
FAILS_AT_ITS_END = """
def test_leaves_harm(whole):
    whole.append("harm" if whole == [1] else "none")

def test_has_the_second(whole):
    assert whole == [2, "none"]
"""
NEVER_READY = """
import pytest

@pytest.mark.parametrize("count", range(3))
def test_waits(unready, count):
    pass
"""


def run_pytest(folder: Path, module: str, *options: str) -> str:
    """The output of pytest over a folder with this module."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_module.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE)}
    completed = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return completed.stdout + completed.stderr


def test_a_rerun_has_new_fixtures_and_the_old_ones_are_torn_down_first(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, PASSES_AT_THE_SECOND_RUN, "--reruns", "1")
    assert "2 passed, 1 rerun" in output
    steps = [line for line in output.splitlines() if "made " in line or "ended " in line]
    assert [step.removeprefix(".").removeprefix("R") for step in steps] == [
        "made 1",
        "ended 1",
        "made 2",
        "ended 2",
    ]


def test_a_test_after_a_failed_one_has_new_fixtures_without_a_rerun(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, FAILS_ONCE)
    assert "1 failed, 1 passed" in output


def test_a_failure_in_a_fixtures_teardown_renews_the_fixtures_too(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, FAILS_AT_ITS_END, "--reruns", "1")
    assert "passed, 1 rerun" in output
    assert "failed" not in output


def test_a_fixture_whose_setup_fails_is_not_tried_again_for_every_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, NEVER_READY)
    assert "3 errors" in output
    assert output.startswith("made 1\ntried\nEEE")
