"""A stream holds what it needs until its end, and its first chunk exists before it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sm.deadline import Deadline, current, running
from sm.errors import BadInput, CallerGone
from sm.router.streaming.stream import Stream


class Held:
    """Notes when it is left, and with which error."""

    def __init__(self) -> None:
        self.left: list[type[BaseException] | None] = []
        self.sent = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.left.append(type(error))
            raise
        self.left.append(None)

    def count(self, _: bytes) -> None:
        self.sent += 1

    def stream(self, chunks: Iterator[bytes]) -> Stream:
        return Stream(chunks, self.open(), self.count)


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_stream_is_left_at_its_end(held: Held) -> None:
    stream = held.stream(iter([b"a", b"", b"b"]))
    assert held.left == []
    assert list(stream) == [b"a", b"", b"b"]
    assert (held.left, held.sent) == ([None], 3)


def test_a_stream_may_be_empty(held: Held) -> None:
    assert list(held.stream(iter([]))) == []
    assert held.left == [None]


def test_what_fails_before_the_first_chunk_is_raised_at_once(held: Held) -> None:
    def failing() -> Iterator[bytes]:
        raise BadInput("no")
        yield b""

    with pytest.raises(BadInput):
        held.stream(failing())
    assert held.left == [BadInput]


def test_what_fails_later_is_raised_in_its_place(held: Held) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise BadInput("no")

    stream = held.stream(failing())
    assert next(stream) == b"a"
    with pytest.raises(BadInput):
        next(stream)
    assert held.left == [BadInput]


@pytest.mark.parametrize("read", [0, 1, 2])
def test_a_stream_that_is_closed_closes_what_it_is_made_of(held: Held, read: int) -> None:
    closed: list[bool] = []

    def endless() -> Iterator[bytes]:
        try:
            while True:
                yield b"a"
        finally:
            closed.append(True)

    stream = held.stream(endless())
    for _ in range(read):
        next(stream)
    stream.close()
    assert closed == [True]
    assert held.left == [GeneratorExit]
    assert list(stream) == []


def test_each_chunk_is_made_under_the_deadline_the_stream_began_with(held: Held) -> None:
    gone = threading.Event()

    def looking() -> Iterator[bytes]:
        for _ in range(3):
            deadline = current()
            assert deadline is not None
            deadline.check()
            yield b"a"

    with running(Deadline(time.monotonic() + 60, gone.is_set)):
        stream = held.stream(looking())
    assert current() is None
    assert [next(stream), next(stream)] == [b"a", b"a"]
    gone.set()
    with pytest.raises(CallerGone):
        next(stream)


def test_a_stream_may_end_in_another_thread_than_it_began(held: Held) -> None:
    with running(Deadline(time.monotonic() + 60)):
        stream = held.stream(iter([b"a", b"b"]))
    rest: list[bytes] = []
    thread = threading.Thread(target=lambda: rest.extend(stream))
    thread.start()
    thread.join(10)
    assert rest == [b"a", b"b"]
    assert held.left == [None]
