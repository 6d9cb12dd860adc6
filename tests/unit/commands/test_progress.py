"""The progress of a long step: a live bar on a terminal, plain lines elsewhere, and how it ended."""

from __future__ import annotations

import io
import re

import pytest

from sm.commands import progress
from sm.commands.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_long_step(stream: io.StringIO) -> str:
    """Run a step that lasts until its progress was read three times; return what is shown."""
    calls: list[int] = []

    def count_bytes() -> int:
        calls.append(1)
        return len(calls) * 1_000_000

    with Progress(stream).step("fetching", 10_000_000, count_bytes):
        while len(calls) < 3:
            pass
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())


def test_without_a_terminal_a_long_step_prints_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.01)
    first, *_, last = run_long_step(io.StringIO()).splitlines()
    assert re.fullmatch(r"fetching … 1\.0 MB of 10\.0 MB, \d\.\d s", first)
    assert re.fullmatch(r"fetching … 10\.0 MB, \d\.\d s", last)


def test_on_a_terminal_a_bar_moves_and_one_line_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LIVE_INTERVAL_S", 0.01)
    text = run_long_step(Terminal())
    assert re.search(r"fetching … ━+.* \d\.0 MB of 10\.0 MB, \d\.\d s", text)
    assert re.search(r"fetching … 10\.0 MB, \d\.\d s\n$", text)
