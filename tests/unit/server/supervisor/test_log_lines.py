"""What Triton, nginx, gunicorn and Python print becomes records; nothing a child prints can break the log."""

from __future__ import annotations

from typing import Any

import pytest

from sm.server.supervisor.log_lines import MAX_LINE_BYTES, LineSplitter, Members, parse


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        (
            'I1121 10:43:08.123456 77 server.cc:273] "Waiting for \\"x\\"\\nand y"',
            "info",
            'Waiting for "x"\nand y',
        ),
        ("W1121 10:43:08.123456 77 pinned_memory_manager.cc:271] older form", "warning", "older form"),
        ("E1121 10:43:08.123456 1 model_lifecycle.cc:630] failed to load 'a'", "error", "failed to load 'a'"),
        ('E1121 10:43:08.123456 1 a.cc:1] "cut in the mid', "error", "cut in the mid"),
        ("F1121 10:43:08.1 1 a.cc:1] over", "critical", "over"),
        ("2026-11-21T10:43:08Z I 77 main.cc:1] iso", "info", "iso"),
        ("2026/11/21 10:43:08 [error] 7#7: *3 connect() failed", "error", "*3 connect() failed"),
        ("2026/11/21 10:43:08 [notice] 7#7: start", "info", "start"),
        ("2026/11/21 10:43:08 [warn] 7#7: hm", "warning", "hm"),
        ("nginx: [emerg] bind() failed", "critical", "bind() failed"),
        ('{"level":"warning","message":"mine"}', "warning", "mine"),
        ('{"level":"shout","message":"mine"}', "info", "mine"),
        ('{"level":7,"message":"mine"}', "info", "mine"),
        ('{"message":7}', "info", '{"message":7}'),
        ('{"no":"message"}', "info", '{"no":"message"}'),
        ("{broken", "info", "{broken"),
        ("[1]", "info", "[1]"),
        ("| resnet | 1 | READY |", "debug", "| resnet | 1 | READY |"),
        ("anything", "info", "anything"),
    ],
)
def test_a_lines_level_and_message(line: str, level: str, message: str) -> None:
    found = parse(line)
    assert (found["level"], found["message"]) == (level, message)


def test_a_json_line_keeps_its_other_members() -> None:
    assert parse('{"level":"info","message":"m","model":"a","ms":1}') == {
        "level": "info",
        "message": "m",
        "model": "a",
        "ms": 1,
    }


@pytest.mark.parametrize("time", ['"never"', "7", "null", "{}"])
def test_a_time_that_is_none_is_left_out(time: str) -> None:
    assert "time" not in parse(f'{{"message":"m","time":{time}}}')


def test_a_query_is_not_logged_it_may_hold_a_key() -> None:
    line = (
        '2026/11/21 10:43:08 [error] 7#7: *3 upstream failed, request: "POST /x?key=secret HTTP/1.1", '
        'upstream: "http://unix:/a:/x?key=secret", host: "h"'
    )
    assert "secret" not in parse(line)["message"]
    assert 'request: "POST /x?… HTTP/1.1"' in parse(line)["message"]


def read(*parts: bytes, end: bool = True) -> list[Members]:
    found: list[Members] = []
    lines = LineSplitter(found.append)
    for part in parts:
        lines.feed(part)
    if end:
        lines.end()
    return found


def messages(*parts: bytes, **options: Any) -> list[str]:
    return [str(members["message"]) for members in read(*parts, **options)]


def test_lines_are_whole_however_they_arrive() -> None:
    assert messages(b"on", b"e\ntw", b"o\nthree") == ["one", "two", "three"]


def test_the_last_line_waits_for_its_end() -> None:
    assert messages(b"one\ntwo", end=False) == ["one"]


def test_empty_lines_are_nothing() -> None:
    assert messages(b"\n \r\none\r\n\n") == ["one"]


def test_what_is_not_utf8_is_replaced() -> None:
    assert messages(b"a\xffb\n") == ["a\ufffdb"]


def test_a_very_long_line_is_cut_and_held_in_bounds() -> None:
    found: list[Members] = []
    lines = LineSplitter(found.append)
    for _ in range(100):
        lines.feed(b"x" * MAX_LINE_BYTES)
        assert len(lines._partial_line) <= MAX_LINE_BYTES + 1
    lines.feed(b"\nnext\n")
    assert found[0]["message"] == "x" * MAX_LINE_BYTES + " … (cut)"
    assert found[1]["message"] == "next"


TRACEBACK = (
    b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    boom()\nValueError: no\n'
)


def test_a_traceback_is_one_record() -> None:
    found = read(b"before\n" + TRACEBACK + b"after\n")
    assert [str(members["message"]).splitlines()[-1] for members in found] == [
        "before",
        "ValueError: no",
        "after",
    ]
    assert found[1]["level"] == "error"
    assert len(str(found[1]["message"]).splitlines()) == 4


def test_a_traceback_cut_off_by_the_end_is_not_lost() -> None:
    assert messages(TRACEBACK[:60])[0].startswith("Traceback (most recent call last):")


def test_a_traceback_without_end_is_held_in_bounds() -> None:
    found = read(
        b"Traceback (most recent call last):\n" + b"  x" * 10 + b"\n" + b"  line\n" * 20_000, end=False
    )
    assert found
    assert len(str(found[0]["message"])) < 2 * MAX_LINE_BYTES
