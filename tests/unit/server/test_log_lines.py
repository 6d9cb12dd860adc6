"""Lines of Triton, nginx, gunicorn and Python become records, and tell of loads; nothing that a child prints breaks the log."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from sm.server.logs import MAX_LINE_BYTES, GpuLines, LineSplitter, LoadLines, Members, parse


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ('I1121 10:43:08.1 77 server.cc:273] "For \\"x\\"\\nand y"', "info", 'For "x"\nand y'),
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


def test_a_json_line_keeps_its_other_members_and_a_valid_time() -> None:
    members = {"level": "info", "message": "m", "model": "a", "ms": 1}
    for time in ("never", 7, None, {}):
        assert parse(json.dumps({**members, "time": time})) == members


def test_the_query_of_a_request_is_not_logged() -> None:
    line = (
        '2026/11/21 10:43:08 [error] 7#7: *3 upstream failed, request: "POST /x?key=secret HTTP/1.1", '
        'upstream: "http://unix:/a:/x?key=secret", host: "h"'
    )
    assert "secret" not in parse(line)["message"]
    assert 'request: "POST /x?… HTTP/1.1"' in parse(line)["message"]


def split(*parts: bytes, end: bool = True) -> list[Members]:
    """Feed the parts to a splitter and return its records; ``end``: the output ended."""
    records: list[Members] = []
    lines = LineSplitter(records.append)
    for part in parts:
        lines.feed(part)
    if end:
        lines.end()
    return records


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
    assert [record["message"] for record in split(*parts)] == messages
    waiting = split(*parts, b"\nwaits for its end", end=False)
    assert [record["message"] for record in waiting] == messages


def test_a_very_long_line_is_cut_and_never_held_in_full() -> None:
    parts = [b"x" * MAX_LINE_BYTES] * 1000
    tracemalloc.start()
    try:
        long, following = split(*parts, b"\nnext\n")
        assert tracemalloc.get_traced_memory()[1] < 20 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()
    assert MAX_LINE_BYTES <= len(str(long["message"])) < MAX_LINE_BYTES + 20
    assert following["message"] == "next"


def test_a_traceback_is_one_record_of_bounded_length() -> None:
    text = b'Traceback (most recent call last):\n  File "a.py", line 1\n    boom()\nValueError: no\n'
    _, traceback, after = split(b"before\n" + text + b"after\n")
    assert (traceback["level"], len(str(traceback["message"]).splitlines())) == ("error", 4)
    assert after["message"] == "after"
    # One that the end cuts off, and one without an end.
    assert len(split(text[:60])) == 1
    endless = split(text[:60] + b"\n" + (b"  " + b"x" * 200 + b"\n") * (MAX_LINE_BYTES // 200), end=False)
    assert MAX_LINE_BYTES / 2 < len(str(endless[0]["message"])) < 2 * MAX_LINE_BYTES


#: What Triton prints on a machine without a GPU.
NO_GPU_LINES = (
    'W1123 01:46:47.323 7 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned memory pool will not be available: CUDA driver version is insufficient for CUDA runtime version"',
    'I1123 01:46:47.323 7 cuda_memory_manager.cc:117] "CUDA memory pool disabled"',
    'E1123 01:46:47.323 7 server.cc:241] "CudaDriverHelper has not been initialized."',
    'W1123 01:46:49.102 7 pinned_memory_manager.cc:170] "failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned system memory"',
    "Error: Failed to initialize NVML",
    'E1123 01:46:49.101 7 ensemble_scheduler.cc:1468] "unable to create stream for whole: CUDA driver version is insufficient for CUDA runtime version"',
    'W1123 01:46:50.684 7 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
)
MODEL_ERROR = "E1123 01:46:50.684 7 model_lifecycle.cc:630] \"failed to load 'a': no CUDA-capable device\""


@pytest.mark.parametrize(
    ("has_gpu", "levels"),
    [
        (True, ["warning", "info", "error", "warning", "info", "error", "warning", "error"]),
        # One sentence in place of the lines.
        (False, ["info", *["debug"] * len(NO_GPU_LINES), "error"]),
    ],
)
def test_tritons_lines_about_a_missing_gpu_are_errors_only_on_a_machine_with_one(
    has_gpu: bool, levels: list[str]
) -> None:
    written: list[Members] = []
    lines = GpuLines(written.append, has_gpu)
    for line in (*NO_GPU_LINES, MODEL_ERROR):
        lines(parse(line))
    assert [members["level"] for members in written] == levels


@pytest.mark.parametrize("form", ["{}", '"{}"'], ids=["Triton 2.51", "Triton 2.71"])
def test_a_model_loads_until_triton_says_how_it_ended(form: str) -> None:
    written: list[Members] = []
    lines = LoadLines(written.append)
    ended = ("successfully loaded 'good'", "failed to load 'bad' version 2: Internal: no")
    for text in ("loading: a:b:1", "loading: good:1", "loading: bad:2", *ended):
        lines(parse(f"I1127 02:34:42.163460 7 model_lifecycle.cc:473] {form.format(text)}"))
    lines(parse("loading: printed:1"))
    assert lines.loading == ["a:b"]
    assert lines.without_ended(["bad", "good", "unseen"]) == ["unseen"]
    assert len(written) == 6
