"""The executable contract stands alone and tells what is missing from what is broken; its page is complete."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from werkzeug import Request, Response

from sm.settings import HERE, Settings
from sm.triton.server import PassedOn
from tests.support.http_server import serving

FOLDER = HERE / "tests" / "contract"
PAGE = HERE / "docs" / "inside" / "contract.md"
TEST_REFERENCE = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
#: Pages that name tests, or their files and folders.
PAGES = (PAGE, HERE / "tests/integration/reference/README.md", HERE / "docs/run/security.md")


def minimal_container(request: Request) -> Response:
    """A minimal SageMaker container: ``/ping`` and ``/invocations`` for one JSON body."""
    if request.method == "GET":
        return Response(status=200 if request.path == "/ping" else 404, content_type="application/json")
    good = request.path == "/invocations" and request.get_data() == b'{"x": 1}'
    return Response('{"y": 1}' if good else "{}", 200 if good else 400, content_type="application/json")


def run_copy(folder: Path, url: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Run a copy of the tests outside this repository. Returns the exit status and the rows by promise."""
    shutil.copytree(FOLDER, folder / "contract", ignore=shutil.ignore_patterns("own.py", "__pycache__"))
    (folder / "body.json").write_bytes(b'{"x": 1}')
    command = [sys.executable, "-m", "pytest", "-q", "contract", "--url", url, "--body", "body.json"]
    completed = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--contract-json", "table.json", *options],
        cwd=folder,
        # As where the copy is alone: nothing but pytest and its own conftest.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        timeout=240,
    )
    table = folder / "table.json"
    rows = json.loads(table.read_text())["rows"] if table.exists() else []
    return completed.returncode, {row["promise"]: row for row in rows}


def test_a_minimal_container_passes_and_learns_what_it_lacks(tmp_path: Path) -> None:
    with serving(minimal_container) as url:
        status, rows = run_copy(tmp_path, url)
    lacking = rows["metadata lists the models inputs"]
    assert (status, lacking["state"], bool(lacking["why"])) == (0, "has not", True)
    for promise in ("get is 200 with an empty body", "a good request is a 200"):
        assert rows[promise]["state"] == "has"
    assert "broken" not in {row["state"] for row in rows.values()}


def test_a_container_that_breaks_a_promise_of_its_mode_fails(tmp_path: Path) -> None:
    with serving(lambda _: Response(status=500)) as url:
        status, rows = run_copy(tmp_path, url, "-k", "ping and empty_body", "--mode", "mme")
    (row,) = rows.values()
    assert (status, row["mode"], row["state"], bool(row["why"])) == (1, "mme", "broken", True)


def test_a_url_that_does_not_respond_is_reported_at_once(tmp_path: Path) -> None:
    assert run_copy(tmp_path, "http://127.0.0.1:9") == (4, {})


def test_only_own_py_imports_from_this_repository() -> None:
    ours = re.compile(r"^\s*(from|import) (sm|tests)\b", re.M)
    assert [file.name for file in FOLDER.glob("*.py") if ours.search(file.read_text())] == ["own.py"]


def rows_by_section() -> dict[str, list[list[str]]]:
    """The rows of the page by section, each a list of cells."""
    sections: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            rows = sections.setdefault(line[4:], [])
        elif line.startswith("| ") and not line.startswith("| row "):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return sections


def test_every_row_is_held_by_tests_or_says_that_it_is_open() -> None:
    for title, rows in rows_by_section().items():
        for row in rows:
            assert len(row) == 2, f"{title}: {row}"
            assert TEST_REFERENCE.search(row[1]) or row[1] == "**open**", f"{title}: {row[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:contract|e2e|integration|unit)/[\w/.]+)(?:::(test_\w+))?`", page.read_text())
    assert named
    for place, test in named:
        path = HERE / "tests" / place
        assert path.exists(), place
        assert not test or f"def {test}(" in path.read_text(), f"{place}::{test}"


def test_every_variable_of_the_platform_has_a_row() -> None:
    documented = {
        name for row in rows_by_section()["5. Environment"] for name in re.findall(r"`([A-Z_]+)`", row[0])
    }
    names = {name for row in (*fields(Settings), *fields(PassedOn)) for name in row.metadata["names"]}
    assert {name for name in names if not name.startswith("TRIREME_")} == documented
