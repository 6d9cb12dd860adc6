"""Standard output may be slow, closed or a file: the box goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from selectors import PollSelector

import pytest

from sm.server.supervisor.log_writer import MAX_BUFFERED_BYTES, PIPE_BUF_BYTES, NonBlockingWriter


@pytest.fixture
def selector() -> Iterator[PollSelector]:
    with PollSelector() as made:
        yield made


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def sink_on(descriptor: int, selector: PollSelector) -> NonBlockingWriter:
    return NonBlockingWriter(descriptor, selector, lambda count: b"lost %d\n" % count)


def turn(selector: PollSelector) -> bool:
    """One round of an event loop; whether anything was ready."""
    ready = selector.select(0)
    for key, _ in ready:
        key.data()
    return bool(ready)


def read(descriptor: int) -> bytes:
    received = b""
    try:
        while part := os.read(descriptor, 1 << 16):
            received += part
    except BlockingIOError:
        pass
    return received


def test_lines_come_out_in_order(pipe: tuple[int, int], selector: PollSelector) -> None:
    sink = sink_on(pipe[1], selector)
    for number in range(1000):
        sink.write(b"line %d\n" % number)
    while turn(selector):
        pass
    assert read(pipe[0]) == b"".join(b"line %d\n" % number for number in range(1000))


def test_a_line_longer_than_a_write_comes_out_whole(pipe: tuple[int, int], selector: PollSelector) -> None:
    sink = sink_on(pipe[1], selector)
    sink.write(b"a" * (3 * PIPE_BUF_BYTES + 7) + b"\n")
    sink.write(b"b\n")
    while turn(selector):
        pass
    assert read(pipe[0]) == b"a" * (3 * PIPE_BUF_BYTES + 7) + b"\nb\n"


def test_a_reader_that_stands_still_holds_up_nobody_and_is_told_what_it_missed(
    pipe: tuple[int, int], selector: PollSelector
) -> None:
    sink = sink_on(pipe[1], selector)
    line = b"x" * 1023 + b"\n"
    written = MAX_BUFFERED_BYTES // len(line) + 200
    for _ in range(written):
        sink.write(line)
        turn(selector)
    received = read(pipe[0])
    while turn(selector):
        received += read(pipe[0])
    sink.write(b"again\n")
    while turn(selector):
        pass
    tail = (received + read(pipe[0])).splitlines()[-2:]
    dropped = int(tail[0].split()[1])
    assert tail == [b"lost %d" % dropped, b"again"]
    assert (received.count(b"\n")) == written - dropped


def test_a_closed_output_is_given_up_in_silence(pipe: tuple[int, int], selector: PollSelector) -> None:
    sink = sink_on(pipe[1], selector)
    os.close(pipe[0])
    for _ in range(3):
        sink.write(b"nobody reads this\n")
        turn(selector)
    assert not selector.get_map()


def test_an_output_that_never_was_is_given_up_in_silence(selector: PollSelector) -> None:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.close(descriptor)
    sink = sink_on(descriptor, selector)
    sink.write(b"x\n")
    turn(selector)
    sink.flush(0.1)
    assert not selector.get_map()


def test_a_plain_file_is_an_output_too(tmp_path: Path, selector: PollSelector) -> None:
    with (tmp_path / "log").open("wb") as file:
        sink = sink_on(file.fileno(), selector)
        sink.write(b"kept\n")
        sink.flush(1)
    assert (tmp_path / "log").read_bytes() == b"kept\n"


def test_a_flush_does_not_wait_for_ever(pipe: tuple[int, int], selector: PollSelector) -> None:
    sink = sink_on(pipe[1], selector)
    sink.write(b"x" * (1 << 20))
    sink.flush(0.1)
    assert read(pipe[0])
