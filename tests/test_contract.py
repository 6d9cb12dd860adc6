"""The executable contract stands alone, and tells what is not there from what is broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE

FOLDER = HERE / "tests" / "contract"


class Smallest(BaseHTTPRequestHandler):
    """The least that is a SageMaker container: ``/ping`` and ``/invocations`` for one JSON body."""

    protocol_version = "HTTP/1.1"
    timeout = 3

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/ping" else 404, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        good = self.path == "/invocations" and body == b'{"x": 1}'
        self.answer(200 if good else 400, b'{"y": 1}' if good else b"{}")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Sick(Smallest):
    """One whose ``/ping`` fails."""

    def do_GET(self) -> None:
        self.answer(500, b"")


class Server(ThreadingHTTPServer):
    request_queue_size = 128


@contextmanager
def serving(kind: type[Smallest]) -> Iterator[str]:
    with Server(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def asked(folder: Path, url: str, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, output and table of a run of a copy of the tests, far from this repository."""
    shutil.copytree(FOLDER, folder / "contract", ignore=shutil.ignore_patterns("own.py", "__pycache__"))
    (folder / "body.json").write_bytes(b'{"x": 1}')
    command = [sys.executable, "-m", "pytest", "-q", "contract", "--url", url, "--body", "body.json"]
    ended = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--contract-json", "table.json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    file = folder / "table.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    return ended.returncode, ended.stdout, {row["promise"]: row for row in rows}


def test_a_container_that_has_the_least_passes_and_is_told_what_it_has_not(tmp_path: Path) -> None:
    with serving(Smallest) as url:
        status, output, rows = asked(tmp_path, url)
    assert status == 0, output
    assert rows["get is 200 with an empty body"]["state"] == "has"
    assert rows["a good request is a 200"]["state"] == "has"
    assert rows["metadata"]["state"] == "has not"
    assert rows["metadata"]["why"] == "/v2/health/live is not 200"
    assert "broken" not in {row["state"] for row in rows.values()}
    assert f"the contract of {url}" in output
    assert "has        a good request is a 200" in output


def test_a_container_that_breaks_a_promise_fails(tmp_path: Path) -> None:
    with serving(Sick) as url:
        status, output, rows = asked(tmp_path, url, "-k", "ping")
    assert status == 1, output
    assert rows["get is 200 with an empty body"]["state"] == "broken"
    assert rows["get is 200 with an empty body"]["why"]


def test_what_needs_another_mode_is_not_asked(tmp_path: Path) -> None:
    with serving(Smallest) as url:
        status, output, rows = asked(tmp_path, url, "-k", "test_a_good_request", "--mode", "mme")
    assert status == 0, output
    assert rows["a good request is a 200"]["state"] == "not asked"
    assert "--mode single" in rows["a good request is a 200"]["why"]


def test_nobody_at_the_url_is_said_at_once(tmp_path: Path) -> None:
    status, output, rows = asked(tmp_path, "http://127.0.0.1:9")
    assert (status, rows) == (4, {})
    assert "nobody answers at http://127.0.0.1:9" in output


def test_the_contract_imports_nothing_of_ours_but_to_start_our_own_box() -> None:
    for file in FOLDER.glob("*.py"):
        if file.name != "own.py":
            text = file.read_text()
            for ours in ("import sm", "from sm", "from tests", "import tests"):
                assert ours not in text, file.name


@pytest.mark.parametrize("option", ["--url", "--mode", "--body", "--model-dir", "--contract-json"])
def test_every_option_is_in_its_readme(option: str) -> None:
    assert f"`{option}" in (FOLDER / "README.md").read_text()
