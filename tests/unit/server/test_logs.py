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
    try:
        raise ValueError("no")
    except ValueError:
        extra = {"model": "resnet", "ms": 1.5, "value": {1}}
        logging.getLogger("sm.x").exception("two\nlines %d", 7, extra=extra)
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record.pop("traceback").startswith("Traceback (most recent call last):")
    own = {"model": "resnet", "ms": 1.5, "value": "{1}"}
    assert record == {"level": "error", "message": "two\nlines 7", "logger": "sm.x", **own}


def json_line(**members: str) -> bytes:
    return logs.Formatter("info", text=False, colour=False).line("data", {"level": "info", **members})


def test_a_childs_time_is_kept_but_not_a_process_name_that_it_claims() -> None:
    record = json.loads(json_line(message="ä", time=TIME, process="forged"))
    assert record == {"time": TIME, "process": "data", "level": "info", "message": "ä"}
    assert json.loads(json_line(message="\ud800"))["message"] == "?"


@pytest.mark.parametrize(
    ("level", "written"), [("debug", False), ("info", False), ("warning", True), ("critical", True)]
)
def test_lines_below_the_log_level_are_left_out(level: str, written: bool) -> None:
    line = logs.Formatter("warning", text=False, colour=False).line("x", {"level": level, "message": "m"})
    assert bool(line) is written


def test_a_text_line_shows_process_level_message_members_and_then_a_traceback() -> None:
    record = {"time": TIME, "process": "data", "level": "error", "message": "no", "model": "a"}
    record |= {"traceback": "T\n  a\nE: b", "place": "f:1"}
    first, *others = logs.as_text(record, colour=False).splitlines()
    assert first[2:].split(" ", 1)[1] == "data    error: no model=a"
    assert others == ["    T", "      a", "    E: b"]
    assert "\x1b[31m" in logs.as_text(record, colour=True)
