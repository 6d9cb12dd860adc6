"""A stream is read at once, kept within bounds, and given up if its caller is too far behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from sm.errors import ModelFailed, StreamStalled
from sm.triton.read_ahead import PART_OVERHEAD_BYTES, STREAM_BACKLOG, STREAM_BYTES, TOTAL_BYTES, read_ahead

MIB = 2**20


def wait_for(condition: threading.Event) -> None:
    assert condition.wait(20)


def test_parts_come_in_order_before_their_error_and_are_read_before_they_are_taken() -> None:
    all_read = threading.Event()

    def source() -> Iterator[bytes]:
        for number in range(100):
            yield b"%d" % number
        all_read.set()
        raise ModelFailed("no such luck")

    parts = read_ahead(source(), len, lambda: None, None)
    assert next(parts) == b"0"
    wait_for(all_read)
    assert [next(parts) for _ in range(99)] == [b"%d" % number for number in range(1, 100)]
    with pytest.raises(ModelFailed):
        next(parts)
    assert STREAM_BACKLOG.buffered_bytes == 0


@pytest.mark.parametrize("part", [bytes(MIB), b"x"], ids=["large parts", "tiny parts"])
def test_a_stream_that_fills_the_buffers_of_its_worker_is_given_up_at_once(part: bytes) -> None:
    cancelled, sizes = threading.Event(), list[int]()

    def source() -> Iterator[bytes]:
        while not cancelled.is_set():
            sizes.append(STREAM_BACKLOG.buffered_bytes)
            yield part

    parts = read_ahead(source(), len, cancelled.set, None)
    with pytest.raises(StreamStalled):
        for _ in parts:
            wait_for(cancelled)
    assert TOTAL_BYTES - MIB <= max(sizes) < TOTAL_BYTES + 2 * MIB
    # Tiny ones count for the memory that they take.
    assert len(sizes) <= TOTAL_BYTES // PART_OVERHEAD_BYTES + 2
    assert STREAM_BACKLOG.buffered_bytes == 0


def test_many_slow_callers_share_the_buffers_of_their_worker() -> None:
    count, sizes, given_up = 4 * TOTAL_BYTES // STREAM_BYTES, list[int](), threading.Semaphore(0)

    def source() -> Iterator[bytes]:
        while True:
            sizes.append(STREAM_BACKLOG.buffered_bytes)
            yield bytes(MIB // 8)

    streams = [read_ahead(source(), len, given_up.release, None) for _ in range(count)]
    for stream in streams:
        # Each takes a part and then stops, far below what one stream may be behind.
        with contextlib.suppress(StreamStalled):
            next(stream)
    assert all(given_up.acquire(timeout=20) for _ in range(count // 2))
    assert max(sizes) < TOTAL_BYTES + count * MIB
    for stream in streams:
        stream.close()
    assert STREAM_BACKLOG.buffered_bytes == STREAM_BACKLOG.streams == 0


def test_a_caller_who_is_behind_for_too_long_loses_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STREAM_BACKLOG, "seconds", 0.3)
    cancelled = threading.Event()

    def source(*first: bytes) -> Iterator[bytes]:
        yield from first
        while not cancelled.is_set():
            time.sleep(0.01)
            yield b"x"

    parts = read_ahead(source(bytes(STREAM_BYTES)), len, cancelled.set, None)
    next(parts)
    # It has everything that there is, so it may take its time.
    assert not cancelled.wait(0.6)
    parts.close()

    cancelled.clear()
    parts = read_ahead(source(b"first", bytes(STREAM_BYTES)), len, cancelled.set, None)
    next(parts)
    wait_for(cancelled)
    with pytest.raises(StreamStalled):
        list(parts)
