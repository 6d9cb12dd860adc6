"""Lines of Triton, nginx, gunicorn and Python become records, and tell of loads; nothing that a child prints breaks the log."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from sm.server.logs import MAX_LINE_BYTES, GpuLines, LineSplitter, LoadLines, Members, parse


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        (
            'I1121 10:43:08.1 77 server.cc:273] "Waiting for \\"x\\"\\nand y"',
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
        ("\x1b[0;93manything\x1b[m in colour", "info", "anything in colour"),
        ('{"level":"warning","message":"\\u001b[31mred\\u001b[0m"}', "warning", "red"),
    ],
)
def test_level_and_message_of_a_line(line: str, level: str, message: str) -> None:
    record = parse(line)
    assert (record["level"], record["message"]) == (level, message)


def test_a_json_line_keeps_its_other_members() -> None:
    members = {"level": "info", "message": "m", "model": "a", "ms": 1}
    assert parse(json.dumps(members)) == members


@pytest.mark.parametrize("time", ['"never"', "7", "null", "{}"])
def test_an_invalid_time_is_left_out(time: str) -> None:
    assert "time" not in parse(f'{{"message":"m","time":{time}}}')


def test_the_query_of_a_request_is_not_logged() -> None:
    line = (
        '2026/11/21 10:43:08 [error] 7#7: *3 upstream failed, request: "POST /x?key=secret HTTP/1.1", '
        'upstream: "http://unix:/a:/x?key=secret", host: "h"'
    )
    assert "secret" not in parse(line)["message"]
    assert 'request: "POST /x?… HTTP/1.1"' in parse(line)["message"]


def split_records(*parts: bytes, end: bool = True) -> list[Members]:
    """Feed the parts to a splitter and return its records; ``end``: the output ended."""
    records: list[Members] = []
    lines = LineSplitter(records.append)
    for part in parts:
        lines.feed(part)
    if end:
        lines.end()
    return records


def split_messages(*parts: bytes, **options: Any) -> list[str]:
    return [str(record["message"]) for record in split_records(*parts, **options)]


@pytest.mark.parametrize(
    ("parts", "messages"),
    [
        ((b"on", b"e\ntw", b"o\nthree"), ["one", "two", "three"]),
        ((b"\n \r\none\r\n\n",), ["one"]),
        ((b"a\xffb\n",), ["a\ufffdb"]),
    ],
    ids=["in parts", "empty lines", "no UTF-8"],
)
def test_lines_are_joined_from_any_parts(parts: tuple[bytes, ...], messages: list[str]) -> None:
    assert split_messages(*parts) == messages
    assert split_messages(*parts, b"\nwaits for its end", end=False) == messages


def test_a_very_long_line_is_cut_and_never_held_in_full() -> None:
    parts = [b"x" * MAX_LINE_BYTES] * 1000
    tracemalloc.start()
    try:
        long, following = split_messages(*parts, b"\nnext\n")
        assert tracemalloc.get_traced_memory()[1] < 20 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()
    assert (long, following) == ("x" * MAX_LINE_BYTES + " … (cut)", "next")


TRACEBACK = (
    b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    boom()\nValueError: no\n'
)


def test_a_traceback_is_one_record() -> None:
    records = split_records(b"before\n" + TRACEBACK + b"after\n")
    assert [str(members["message"]).splitlines()[-1] for members in records] == [
        "before",
        "ValueError: no",
        "after",
    ]
    assert records[1]["level"] == "error"
    assert len(str(records[1]["message"]).splitlines()) == 4


def test_a_traceback_cut_off_by_the_end_is_logged() -> None:
    assert split_messages(TRACEBACK[:60])[0].startswith("Traceback (most recent call last):")


def test_an_endless_traceback_is_logged_in_bounded_records() -> None:
    records = split_records(
        b"Traceback (most recent call last):\n" + b"  x" * 10 + b"\n" + b"  line\n" * 20_000, end=False
    )
    assert MAX_LINE_BYTES / 2 < len(str(records[0]["message"])) < 2 * MAX_LINE_BYTES


#: What Triton prints on a machine without a GPU.
NO_GPU_LINES = (
    'W1123 01:46:47.323 7 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned '
    'memory pool will not be available: CUDA driver version is insufficient for CUDA runtime version"',
    'I1123 01:46:47.323 7 cuda_memory_manager.cc:117] "CUDA memory pool disabled"',
    'E1123 01:46:47.323 7 server.cc:241] "CudaDriverHelper has not been initialized."',
    'W1123 01:46:49.102 7 pinned_memory_manager.cc:170] "failed to allocate pinned system memory: no pinned '
    'memory pool, falling back to non-pinned system memory"',
    "Error: Failed to initialize NVML",
    'E1123 01:46:49.101 7 ensemble_scheduler.cc:1468] "unable to create stream for whole: CUDA driver version '
    'is insufficient for CUDA runtime version"',
    'W1123 01:46:50.684 7 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
)
MODEL_ERROR = "E1123 01:46:50.684 7 model_lifecycle.cc:630] \"failed to load 'a': no CUDA-capable device\""


@pytest.mark.parametrize("has_gpu", [True, False])
def test_tritons_lines_about_a_missing_gpu_are_errors_only_on_a_machine_with_one(has_gpu: bool) -> None:
    written: list[Members] = []
    lines = GpuLines(written.append, has_gpu)
    for line in (*NO_GPU_LINES, MODEL_ERROR):
        lines(parse(line))
    levels = [members["level"] for members in written]
    if has_gpu:
        assert levels == ["warning", "info", "error", "warning", "info", "error", "warning", "error"]
        return
    # One sentence in place of the lines.
    assert levels == ["info", *["debug"] * len(NO_GPU_LINES), "error"]


#: Of Triton 2.51 and 2.71.
FORMS = (
    "I1127 02:34:42.163460 7 model_lifecycle.cc:473] {}",
    'I1127 02:34:42.163460 7 model_lifecycle.cc:473] "{}"',
)


@pytest.mark.parametrize("form", FORMS, ids=["2.51", "2.71"])
def test_a_model_loads_until_triton_says_how_it_ended(form: str) -> None:
    written: list[Members] = []
    lines = LoadLines(written.append)
    texts = (
        "loading: a:b:1",
        "loading: good:1",
        "loading: bad:2",
        "successfully loaded 'good'",
        "failed to load 'bad' version 2: Internal: no",
    )
    for text in texts:
        lines(parse(form.format(text)))
    lines(parse("loading: printed:1"))
    assert lines.loading == ["a:b"]
    assert lines.without_ended(["bad", "good", "unseen"]) == ["unseen"]
    assert len(written) == len(texts) + 1
