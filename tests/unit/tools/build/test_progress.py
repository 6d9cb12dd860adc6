"""What a long step shows: a live line on a terminal, plain lines elsewhere, and how it ended."""

from __future__ import annotations

import io
import re

import pytest

from sm.tools import progress
from sm.tools.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lasting(shown: Progress, seen: list[int], size: int) -> None:
    """A step that goes on until its progress has been asked for three times."""

    def done() -> int:
        seen.append(1)
        return len(seen) * 1_000_000

    with shown.step("fetching", size, done):
        while len(seen) < 3:
            pass


def test_a_short_step_is_one_line() -> None:
    stream = io.StringIO()
    with Progress(stream).step("converting"):
        pass
    assert re.fullmatch(r"converting … \d\.\d s\n", stream.getvalue())


def test_elsewhere_a_long_step_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.01)
    stream = io.StringIO()
    lasting(Progress(stream), [], 10_000_000)
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"fetching … 1\.0 MB of 10\.0 MB, \d\.\d s", lines[0])
    assert re.fullmatch(r"fetching … 10\.0 MB, \d\.\d s", lines[-1])


def test_on_a_terminal_a_bar_moves_and_one_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LIVE_INTERVAL_S", 0.01)
    stream = Terminal()
    lasting(Progress(stream), [], 10_000_000)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    assert "━" in shown
    assert re.search(r"fetching … ━+.* \d\.0 MB of 10\.0 MB, \d\.\d s", shown)
    assert re.search(r"fetching … 10\.0 MB, \d\.\d s\n$", shown)


def test_on_a_terminal_a_line_that_is_said_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    shown = Progress(stream)
    with shown.step("fetching"):
        shown.say("[b] is no markup")
    assert "[b] is no markup\n" in stream.getvalue()


def test_no_more_than_the_size_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.01)
    stream = io.StringIO()
    lasting(Progress(stream), [], 2_000_000)
    assert "3.0 MB" not in stream.getvalue()


def test_a_step_that_fails_says_so() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress(stream).step("converting"):
        raise KeyError
    assert re.fullmatch(r"converting … \d\.\d s, not finished\n", stream.getvalue())
