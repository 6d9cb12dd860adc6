"""A client loads by itself: what it does while it is imported is seen, and cannot harm the check."""

from __future__ import annotations

from pathlib import Path

from sm.plugins.loading import ClientSource
from sm.tools.check.isolated_load import find_problem
from tests.support import faulty_clients as faulty


def import_problem(folder: Path, head: str, seconds: float = 30.0) -> str | None:
    """What is wrong with a client that does this at import."""
    file = folder / "client.py"
    file.write_text(faulty.source({"head": head}))
    return find_problem(ClientSource("echo", file), seconds)


def test_a_client_that_only_defines_things_has_no_problem(tmp_path: Path) -> None:
    assert import_problem(tmp_path, "") is None


def test_a_client_that_ends_its_process_is_told_so(tmp_path: Path) -> None:
    assert (
        import_problem(tmp_path, "import os; os._exit(3)")
        == "it ends the process it is loaded in (exit code 3)"
    )
    assert (import_problem(tmp_path, "import sys; sys.exit(3)") or "").endswith(
        "client.py: line 9: SystemExit: 3"
    )


def test_an_error_has_its_line(tmp_path: Path) -> None:
    assert (import_problem(tmp_path, "import no_such_module") or "").endswith(
        "client.py: line 9: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_connection_by_number_is_network_too_even_if_the_client_can_do_without(tmp_path: Path) -> None:
    head = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9))\nexcept OSError:\n    pass"
    assert (import_problem(tmp_path, head) or "").startswith(
        "network at import: it wants 127.0.0.1:9 (line 11)"
    )


def test_what_a_client_prints_is_not_taken_for_the_report(tmp_path: Path) -> None:
    assert import_problem(tmp_path, "print('{}')") is None


def test_an_import_that_takes_longer_than_it_may_is_slow(tmp_path: Path) -> None:
    assert (import_problem(tmp_path, "time.sleep(0.3)", seconds=0.2) or "").startswith("slow import: 0.")
