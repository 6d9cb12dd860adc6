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

from werkzeug import Request, Response

from sm.settings import HERE, Settings
from sm.triton.server import PassedOn
from tests.support.http_server import serving

FOLDER = HERE / "tests" / "contract"
PAGE = HERE / "docs" / "inside" / "contract.md"
TEST_REFERENCE = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def minimal_container(request: Request) -> Response:
    """A minimal SageMaker container: ``/ping`` and ``/invocations`` for one JSON body."""
    if request.method == "GET":
        return Response(status=200 if request.path == "/ping" else 404, content_type="application/json")
    good = request.path == "/invocations" and request.get_data() == b'{"x": 1}'
    return Response('{"y": 1}' if good else "{}", 200 if good else 400, content_type="application/json")


def run_copy(folder: Path, url: str, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Run a copy of the tests outside this repository. Returns exit status, output and rows by promise."""
    shutil.copytree(FOLDER, folder / "contract", ignore=shutil.ignore_patterns("own.py", "__pycache__"))
    (folder / "body.json").write_bytes(b'{"x": 1}')
    command = [sys.executable, "-m", "pytest", "-q", "contract", "--url", url, "--body", "body.json"]
    completed = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--contract-json", "table.json", *options],
        cwd=folder,
        # As where the copy is alone: nothing but pytest and its own conftest.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    table_file = folder / "table.json"
    rows = json.loads(table_file.read_text())["rows"] if table_file.exists() else []
    return completed.returncode, completed.stdout, {row["promise"]: row for row in rows}


def test_a_minimal_container_passes_and_learns_what_it_lacks(tmp_path: Path) -> None:
    with serving(minimal_container) as url:
        status, output, rows = run_copy(tmp_path, url)
    assert status == 0, output
    assert rows["get is 200 with an empty body"]["state"] == "has"
    assert rows["a good request is a 200"]["state"] == "has"
    assert rows["metadata lists the models inputs"]["state"] == "has not"
    assert rows["metadata lists the models inputs"]["why"] == "/v2/health/live is not 200"
    assert "broken" not in {row["state"] for row in rows.values()}
    assert f"the contract of {url}" in output
    assert "has        a good request is a 200" in output


def test_a_container_that_breaks_a_promise_fails(tmp_path: Path) -> None:
    with serving(lambda _: Response(status=500)) as url:
        status, output, rows = run_copy(tmp_path, url, "-k", "ping")
    assert status == 1, output
    assert rows["get is 200 with an empty body"]["state"] == "broken"
    assert rows["get is 200 with an empty body"]["why"]


def test_a_container_is_tested_in_its_own_mode_and_the_other_modes_are_named(tmp_path: Path) -> None:
    with serving(minimal_container) as url:
        status, output, rows = run_copy(tmp_path, url, "-k", "ping and empty_body", "--mode", "mme")
    assert status == 0, output
    assert [(row["mode"], row["state"]) for row in rows.values()] == [("mme", "has")]
    assert "for single, batch: start the container in that mode, and run again with --mode" in output


def test_a_url_that_does_not_respond_is_reported_at_once(tmp_path: Path) -> None:
    status, output, rows = run_copy(tmp_path, "http://127.0.0.1:9")
    assert (status, rows) == (4, {})
    assert "no response from http://127.0.0.1:9" in output


def test_only_own_py_imports_from_this_repository() -> None:
    for file in FOLDER.glob("*.py"):
        if file.name != "own.py":
            text = file.read_text()
            for statement in ("import sm", "from sm", "from tests", "import tests"):
                assert statement not in text, file.name


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


def test_every_row_is_held_by_a_test_that_exists_or_says_that_it_is_open() -> None:
    for title, rows in rows_by_section().items():
        for row in rows:
            assert len(row) == 2, f"{title}: {row}"
            tests = TEST_REFERENCE.findall(row[1])
            assert tests or row[1] == "**open**", f"{title}: {row[0]}"
            for file, test in tests:
                source = (HERE / "tests" / file).read_text()
                assert f"def {test}(" in source, f"{file}::{test}"


def test_every_variable_of_the_platform_has_a_row() -> None:
    documented = {
        name for row in rows_by_section()["5. Environment"] for name in re.findall(r"`([A-Z_]+)`", row[0])
    }
    rows = (*fields(Settings), *fields(PassedOn))
    our_names = {name for row in rows for name in row.metadata["names"]}
    assert {name for name in our_names if not name.startswith("TRIREME_")} == documented
