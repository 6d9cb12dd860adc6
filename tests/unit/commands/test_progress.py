"""A long step has a bar on a terminal while it runs, and leaves one line."""

from __future__ import annotations

import io

import pytest

from sm.commands.progress import Progress
from tests.support.boxes import wait_until


def test_a_step_on_a_terminal_has_a_bar_and_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with Progress(terminal).step("fetching", 10_000_000, lambda: 4_000_000):
        wait_until(lambda: "━" in terminal.getvalue())
        assert "4.0 MB of 10.0 MB" in terminal.getvalue()
    assert "━" not in terminal.getvalue().splitlines()[-1]
