"""GitHub's workflows run only targets of the Makefile, on every supported Python; and a newcomer's walk."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.distribution import supported_versions

#: The walk runs on a system as it comes, where the checkout needs git.
WALK, GIT = "tests/newcomer/walk.sh", "apt-get update -qq && apt-get install -y -qq git ca-certificates"
WORKFLOWS = sorted((HERE / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_only_targets_of_the_makefile(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (HERE / "Makefile").read_text(), re.M))
    commands = re.findall(r"^\s*(?:- )?run: (.*)$", workflow.read_text(), re.M)
    assert commands or workflow.stem == "publish"
    commands = [command for command in commands if not command.startswith(("gh release create ", GIT, WALK))]
    assert [command for command in commands if not re.fullmatch(r"make ([\w-]+)", command)] == []
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_the_tests_run_on_every_python_that_the_package_supports() -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", (HERE / ".github/workflows/test.yml").read_text())
    assert [version.strip(' "') for version in matrix.split(",")] == supported_versions()


def test_a_newcomers_walk_is_there_for_the_workflow() -> None:
    assert f"run: {WALK} ." in (HERE / ".github/workflows/test.yml").read_text()
    assert os.access(HERE / WALK, os.X_OK)
