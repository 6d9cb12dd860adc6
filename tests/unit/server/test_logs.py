"""Log lines: what the router's processes write, and what machines and people read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from sm.server import logs

TIME = "2026-11-21T10:43:08.123Z"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    logging.captureWarnings(False)


def test_a_record_is_one_json_object_with_its_extra_members(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    logging.getLogger("sm.x").warning("two\nlines %d", 7, extra={"model": "resnet", "ms": 1.5})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record["time"].endswith("Z")
    assert (record["level"], record["message"], record["logger"]) == ("warning", "two\nlines 7", "sm.x")
    assert (record["model"], record["ms"]) == ("resnet", 1.5)


def test_a_traceback_is_a_member_and_other_values_are_logged_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("sm.x").exception("failed", extra={"value": {1}})
    record = json.loads(capsys.readouterr().err)
    assert record["traceback"].startswith("Traceback (most recent call last):")
    assert record["value"] == "{1}"


def json_line(process: str, members: logs.Members) -> bytes:
    return logs.Formatter("info", text=False, colour=False).line(process, members)


def test_a_json_line_has_time_process_level_and_message() -> None:
    line = json_line("nginx", {"level": "info", "message": "ä"})
    assert list(json.loads(line)) == ["time", "process", "level", "message"]
    assert "ä".encode() in line
    assert line.endswith(b"\n")


def test_a_childs_time_is_kept_but_not_a_process_name_that_it_claims() -> None:
    record = json.loads(
        json_line("data", {"level": "info", "message": "x", "time": TIME, "process": "forged"})
    )
    assert (record["time"], record["process"]) == (TIME, "data")


@pytest.mark.parametrize(
    ("level", "written"), [("debug", False), ("info", False), ("warning", True), ("critical", True)]
)
def test_lines_below_the_log_level_are_left_out(level: str, written: bool) -> None:
    line = logs.Formatter("warning", text=False, colour=False).line("x", {"level": level, "message": "m"})
    assert bool(line) is written


RECORD = {"time": TIME, "process": "data", "level": "error", "message": "no"}


def test_a_text_line_shows_process_level_message_and_members() -> None:
    record = {**RECORD, "model": "a", "place": "f:1"}
    text = logs.as_text(record, colour=False)
    assert text[2:].split(" ", 1)[1] == "data    error: no model=a"
    assert "\x1b" not in text
    assert "\x1b[31m" in logs.as_text(record, colour=True)


def test_in_text_a_traceback_follows_indented_on_its_own_lines() -> None:
    text = logs.as_text({**RECORD, "traceback": "T\n  a\nE: b"}, colour=False)
    assert text.splitlines()[1:] == ["    T", "      a", "    E: b"]


def test_an_unpaired_surrogate_is_replaced() -> None:
    assert json.loads(json_line("x", {"level": "info", "message": "\ud800"}))["message"] == "?"
