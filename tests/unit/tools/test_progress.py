"""A long step has a bar on a terminal while it runs, and leaves one line."""

from __future__ import annotations

import io
import threading

import pytest

from tests.support.boxes import wait_until
from trireme_tools.progress import Progress


def test_a_step_on_a_terminal_has_a_bar_and_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with Progress(terminal).step("fetching", 10_000_000, lambda: 4_000_000):
        wait_until(lambda: "━" in terminal.getvalue())
        assert "4.0 MB of 10.0 MB" in terminal.getvalue()
    assert "━" not in terminal.getvalue().splitlines()[-1]


def test_steps_in_two_threads_have_a_bar_each_and_leave_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, both = io.StringIO(), threading.Barrier(2)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    progress = Progress(terminal)

    def run(name: str) -> None:
        with progress.step(name, 10_000_000, lambda: 4_000_000):
            both.wait()
            wait_until(lambda: terminal.getvalue().count("━") > 1)
            progress.say(f"{name} speaks")
            both.wait()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.say("the end")
    text = terminal.getvalue()
    assert text.endswith("the end\n")
    for name in ("one", "two"):
        assert text.count(f"{name} speaks\n") == 1
        assert text.count(f"{name} … 10.0 MB") == 1
