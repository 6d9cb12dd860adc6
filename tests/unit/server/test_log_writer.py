"""The log writer never blocks the box: standard output may be slow, closed or a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from selectors import PollSelector

import pytest

from sm.server.logs import MAX_BUFFERED_BYTES, PIPE_BUF_BYTES, NonBlockingWriter


@pytest.fixture
def selector() -> Iterator[PollSelector]:
    with PollSelector() as opened:
        yield opened


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    descriptors = os.pipe()
    os.set_blocking(descriptors[0], False)
    yield descriptors
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue


def make_writer(descriptor: int, selector: PollSelector) -> NonBlockingWriter:
    return NonBlockingWriter(descriptor, selector, lambda count: b"lost %d\n" % count)


def run_event_loop_once(selector: PollSelector) -> bool:
    """Run one round of an event loop; return whether anything was ready."""
    ready = selector.select(0)
    for key, _ in ready:
        key.data()
    return bool(ready)


def read_available(descriptor: int) -> bytes:
    received = b""
    try:
        while part := os.read(descriptor, 1 << 16):
            received += part
    except BlockingIOError:
        pass
    return received


@pytest.mark.parametrize(
    "lines",
    [[b"line %d\n" % index for index in range(1000)], [b"a" * (3 * PIPE_BUF_BYTES + 7) + b"\n", b"b\n"]],
    ids=["many lines", "one longer than one write"],
)
def test_lines_are_written_whole_and_in_order(
    pipe: tuple[int, int], selector: PollSelector, lines: list[bytes]
) -> None:
    writer = make_writer(pipe[1], selector)
    for line in lines:
        writer.write(line)
    while run_event_loop_once(selector):
        pass
    assert read_available(pipe[0]) == b"".join(lines)


def test_a_slow_reader_does_not_block_the_box_and_learns_how_many_lines_it_missed(
    pipe: tuple[int, int], selector: PollSelector
) -> None:
    writer = make_writer(pipe[1], selector)
    line = b"x" * 1023 + b"\n"
    line_count = MAX_BUFFERED_BYTES // len(line) + 200
    for _ in range(line_count):
        writer.write(line)
        run_event_loop_once(selector)
    writer.flush(0.1)  # does not wait for ever
    received = read_available(pipe[0])
    while run_event_loop_once(selector):
        received += read_available(pipe[0])
    writer.write(b"again\n")
    while run_event_loop_once(selector):
        pass
    last_lines = (received + read_available(pipe[0])).splitlines()[-2:]
    dropped = int(last_lines[0].split()[1])
    assert last_lines == [b"lost %d" % dropped, b"again"]
    assert (received.count(b"\n")) == line_count - dropped


@pytest.mark.parametrize("was_open", [True, False])
def test_an_output_that_is_closed_or_was_never_open_is_dropped_silently(
    pipe: tuple[int, int], selector: PollSelector, was_open: bool
) -> None:
    writer = make_writer(pipe[1], selector)
    os.close(pipe[0 if was_open else 1])
    for _ in range(3):
        writer.write(b"nobody reads this\n")
        run_event_loop_once(selector)
    writer.flush(0.1)
    assert not selector.get_map()
