"""Log lines: what the router's processes write, and what machines and people read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from sm import logs

MOMENT = "2026-11-21T10:43:08.123Z"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    logging.captureWarnings(False)


def test_a_record_is_one_json_object_with_what_came_as_extra(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    logging.getLogger("sm.x").warning("two\nlines %d", 7, extra={"model": "resnet", "ms": 1.5})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record["time"].endswith("Z")
    assert (record["level"], record["message"], record["logger"]) == ("warning", "two\nlines 7", "sm.x")
    assert (record["model"], record["ms"]) == ("resnet", 1.5)


def test_a_traceback_is_a_member_and_what_json_cannot_carry_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("sm.x").exception("failed", extra={"thing": {1}})
    record = json.loads(capsys.readouterr().err)
    assert record["traceback"].startswith("Traceback (most recent call last):")
    assert record["thing"] == "{1}"


def test_less_than_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("error")
    logging.getLogger("sm.x").warning("no")
    assert capsys.readouterr().err == ""


def test_a_line_for_machines_has_time_process_level_and_message() -> None:
    line = logs.Formatter("info", text=False, colour=False).line("nginx", {"level": "info", "message": "ä"})
    assert list(json.loads(line)) == ["time", "process", "level", "message"]
    assert "ä".encode() in line
    assert line.endswith(b"\n")


def test_a_childs_own_time_is_kept_and_its_process_is_not_its_own_choice() -> None:
    members = {"level": "info", "message": "x", "time": MOMENT, "process": "forged"}
    record = json.loads(logs.Formatter("info", text=False, colour=False).line("data", members))
    assert (record["time"], record["process"]) == (MOMENT, "data")


@pytest.mark.parametrize(
    ("level", "written"), [("debug", False), ("info", False), ("warning", True), ("critical", True)]
)
def test_lines_below_the_level_are_left_out(level: str, written: bool) -> None:
    line = logs.Formatter("warning", text=False, colour=False).line("x", {"level": level, "message": "m"})
    assert bool(line) is written


def test_a_line_for_people_is_one_to_read() -> None:
    record = {
        "time": MOMENT,
        "process": "data",
        "level": "error",
        "message": "no",
        "model": "a",
        "place": "f:1",
    }
    text = logs.as_text(record, colour=False)
    assert text[2:].split(" ", 1)[1] == "data    error: no model=a"
    assert "\x1b" not in text
    assert "\x1b[31m" in logs.as_text(record, colour=True)


def test_a_traceback_for_people_stands_below_its_line_on_lines_of_its_own() -> None:
    record = {
        "time": MOMENT,
        "process": "data",
        "level": "error",
        "message": "no",
        "traceback": "T\n  a\nE: b",
    }
    assert logs.as_text(record, colour=False).splitlines()[1:] == ["    T", "      a", "    E: b"]


def test_half_a_surrogate_does_not_stop_the_log() -> None:
    line = logs.Formatter("info", text=False, colour=False).line("x", {"level": "info", "message": "\ud800"})
    assert json.loads(line)["message"] == "?"
