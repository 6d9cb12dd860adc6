"""``sm check-client`` loads a client in a process of its own and reports what it does at import."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.plugins.loading import ClientSource
from tests.integration.check import faulty_clients as faulty
from trireme_tools.check.isolated_load import find_problem


def import_problem(folder: Path, head: str, seconds: float = 30.0) -> str | None:
    """The problem reported for a client whose module starts with ``head``; None if there is none."""
    file = folder / "client.py"
    file.write_text(faulty.source({"head": head}))
    return find_problem(ClientSource("echo", file), seconds)


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import sys; sys.exit(3)", "line 9: SystemExit"),
        ("import no_such_module", "line 9: ModuleNotFoundError"),
        # Even if the failure is caught.
        (
            "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9))\nexcept OSError:\n    pass",
            "127.0.0.1:9 (line 11)",
        ),
    ],
)
def test_what_a_client_may_not_do_at_import_is_reported(tmp_path: Path, head: str, named: str) -> None:
    assert named in (import_problem(tmp_path, head) or "")


def test_what_a_client_prints_does_not_disturb_the_report(tmp_path: Path) -> None:
    assert import_problem(tmp_path, "print('{}')") is None


def test_a_slow_import_is_reported(tmp_path: Path) -> None:
    assert import_problem(tmp_path, "time.sleep(0.3)", seconds=0.2)
