"""What the box's processes write becomes records that machines and people read; the log never blocks or stops the box."""

from __future__ import annotations

import json
import logging
import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from selectors import PollSelector

import pytest

from sm.server import logs
from sm.server.logs import (
    MAX_BUFFERED_BYTES,
    MAX_LINE_BYTES,
    PIPE_BUF_BYTES,
    LineSplitter,
    Members,
    NonBlockingWriter,
    TritonLines,
    parse,
)

TIME = "2026-11-21T10:43:08.123Z"


def configure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the log until the end of the test as a process of the box does."""
    for name in ("handlers", "level"):
        monkeypatch.setattr(logging.getLogger(), name, getattr(logging.getLogger(), name))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    logs.configure("info")
    logging.captureWarnings(False)


def test_a_record_is_one_json_object_with_its_extra_members(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch)
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


def test_threads_that_fail_at_once_write_one_record_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch)
    threads = [threading.Thread(target=int, args=("not a number",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found = [(record["level"], "not a number" in record["traceback"]) for record in records]
    assert found == [("error", True)] * 20


def json_line(min_level: str = "info", **members: str) -> bytes:
    formatter = logs.Formatter(min_level, text=False, colour=False)
    return formatter.line("data", {"level": "info", "message": "m", **members})


def test_a_childs_time_is_kept_but_not_a_process_name_that_it_claims() -> None:
    record = json.loads(json_line(message="ä", time=TIME, process="forged"))
    assert record == {"time": TIME, "process": "data", "level": "info", "message": "ä"}
    assert json.loads(json_line(message="\ud800"))["message"] == "?"


def test_lines_below_the_log_level_are_left_out() -> None:
    levels = ("debug", "info", "warning", "critical")
    assert [level for level in levels if json_line("warning", level=level)] == ["warning", "critical"]


def test_a_text_line_shows_process_level_message_members_and_then_a_traceback() -> None:
    record = {"time": TIME, "process": "data", "level": "error", "message": "no", "model": "a"}
    record |= {"traceback": "T\n  a\nE: b", "place": "f:1"}
    first, *others = logs.as_text(record, colour=False).splitlines()
    assert first[2:].split(" ", 1)[1] == "data    error: no model=a"
    assert others == ["    T", "      a", "    E: b"]
    assert "\x1b[31m" in logs.as_text(record, colour=True)


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


@pytest.mark.parametrize("time", ["never", 7, None, []])
def test_a_json_line_keeps_its_other_members_but_no_invalid_time(time: object) -> None:
    members = {"level": "info", "message": "m", "model": "a", "ms": 1}
    assert parse(json.dumps({**members, "time": time})) == members


def test_the_query_of_a_request_is_not_logged() -> None:
    line = (
        '2026/11/21 10:43:08 [error] 7#7: *3 upstream failed, request: "POST /x?key=secret HTTP/1.1", '
        'upstream: "http://unix:/a:/x?key=secret", host: "h"'
    )
    message = str(parse(line)["message"])
    assert "secret" not in message and "POST /x?" in message


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
GPU_LEVELS = ["warning", "info", "error", "warning", "info", "error", "warning", "error"]


# Without a GPU one sentence stands in place of the lines.
@pytest.mark.parametrize(
    ("has_gpu", "levels"), [(True, GPU_LEVELS), (False, ["info", *["debug"] * len(NO_GPU_LINES), "error"])]
)
def test_lines_about_a_missing_gpu_are_errors_only_with_one(has_gpu: bool, levels: list[str]) -> None:
    written: list[Members] = []
    lines = TritonLines(written.append, has_gpu)
    for line in (*NO_GPU_LINES, MODEL_ERROR):
        lines(parse(line))
    assert [members["level"] for members in written] == levels


@pytest.mark.parametrize("form", ["{}", '"{}"'], ids=["Triton 2.51", "Triton 2.71"])
def test_a_model_loads_until_triton_says_how_it_ended(form: str) -> None:
    written: list[Members] = []
    lines = TritonLines(written.append)
    ended = ("successfully loaded 'good'", "failed to load 'bad' version 2: Internal: no")
    for text in ("loading: a:b:1", "loading: good:1", "loading: bad:2", *ended):
        lines(parse(f"I1127 02:34:42.163460 7 model_lifecycle.cc:473] {form.format(text)}"))
    lines(parse("loading: printed:1"))
    names = ["bad", "good", "unseen"]
    assert lines.loading(names) == ["a:b"]
    lines(parse("I1127 02:34:42.163460 7 model_lifecycle.cc:473] successfully loaded 'a:b'"))
    assert lines.loading(names) == ["unseen"]
    assert len(written) == 7


class Pipe:
    """A pipe whose writer runs in an event loop of the test."""

    def __init__(self, selector: PollSelector) -> None:
        self.selector, self.ends = selector, os.pipe()
        os.set_blocking(self.ends[0], False)
        self.writer = NonBlockingWriter(self.ends[1], selector, lambda count: b"lost %d\n" % count)

    def turn(self) -> bool:
        """Run one round of the event loop; return whether anything was ready."""
        ready = self.selector.select(0)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def read(self) -> bytes:
        received = b""
        with suppress(BlockingIOError):
            while part := os.read(self.ends[0], 1 << 16):
                received += part
        return received

    def read_all(self) -> bytes:
        received = b""
        while self.turn():
            received += self.read()
        return received + self.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with PollSelector() as selector:
        pipe = Pipe(selector)
        yield pipe
    for descriptor in pipe.ends:
        with suppress(OSError):
            os.close(descriptor)


@pytest.mark.parametrize(
    "lines",
    [[b"line %d\n" % index for index in range(1000)], [b"a" * (3 * PIPE_BUF_BYTES + 7) + b"\n", b"b\n"]],
    ids=["many lines", "one longer than one write"],
)
def test_lines_are_written_whole_and_in_order(pipe: Pipe, lines: list[bytes]) -> None:
    for line in lines:
        pipe.writer.write(line)
    assert pipe.read_all() == b"".join(lines)


def test_a_slow_reader_does_not_block_the_box_and_learns_how_many_lines_it_missed(pipe: Pipe) -> None:
    line = b"x" * 1023 + b"\n"
    line_count = MAX_BUFFERED_BYTES // len(line) + 200
    for _ in range(line_count):
        pipe.writer.write(line)
        pipe.turn()
    pipe.writer.flush(0.1)  # does not wait for ever
    received = pipe.read() + pipe.read_all()
    pipe.writer.write(b"again\n")
    *_, lost, last = (received + pipe.read_all()).splitlines()
    dropped = int(lost.split()[1])
    assert (lost, last) == (b"lost %d" % dropped, b"again")
    assert received.count(b"\n") == line_count - dropped


@pytest.mark.parametrize("was_open", [True, False])
def test_an_output_that_is_closed_or_was_never_open_is_dropped_silently(pipe: Pipe, was_open: bool) -> None:
    os.close(pipe.ends[0 if was_open else 1])
    for _ in range(3):
        pipe.writer.write(b"nobody reads this\n")
        pipe.turn()
    pipe.writer.flush(0.1)
    assert not pipe.selector.get_map()
