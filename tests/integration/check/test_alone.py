"""``sm check-client`` loads a client in a process of its own and reports what it does at import."""

from __future__ import annotations

import re
from pathlib import Path

from sm.plugins.loading import ClientSource
from tests.integration.check import faulty_clients as faulty
from trireme_tools.check.isolated_load import find_problem


def import_problem(folder: Path, head: str, seconds: float = 30.0) -> str | None:
    """The problem reported for a client whose module starts with ``head``; None if there is none."""
    file = folder / "client.py"
    file.write_text(faulty.source({"head": head}))
    return find_problem(ClientSource("echo", file), seconds)


def test_a_client_that_ends_its_process_is_reported(tmp_path: Path) -> None:
    assert "exit code 3" in (import_problem(tmp_path, "import os; os._exit(3)") or "")
    assert "client.py: line 9: SystemExit: 3" in (import_problem(tmp_path, "import sys; sys.exit(3)") or "")


def test_an_import_error_has_its_line(tmp_path: Path) -> None:
    assert "line 9: ModuleNotFoundError" in (import_problem(tmp_path, "import no_such_module") or "")


def test_a_connection_to_an_address_counts_as_network_even_if_its_failure_is_caught(tmp_path: Path) -> None:
    head = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9))\nexcept OSError:\n    pass"
    assert "127.0.0.1:9 (line 11)" in (import_problem(tmp_path, head) or "")


def test_what_a_client_prints_does_not_disturb_the_report(tmp_path: Path) -> None:
    assert import_problem(tmp_path, "print('{}')") is None


def test_a_slow_import_is_reported(tmp_path: Path) -> None:
    assert re.search(r"0\.[3-9]", import_problem(tmp_path, "time.sleep(0.3)", seconds=0.2) or "")
