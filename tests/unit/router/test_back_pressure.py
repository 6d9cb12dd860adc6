"""A stream ends with its caller, and gives back what it holds."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest

from sm.errors import BadInput, CallerGone, StreamStalled
from sm.invocation import Invocation, current, running
from sm.router.back_pressure import MIN_RATE, Stream
from sm.triton.read_ahead import STREAM_BACKLOG


class Resources:
    """Resources of a stream: records when they are released, and with which error."""

    def __init__(self) -> None:
        self.released_with: list[type[BaseException] | None] = []
        self.chunks_sent = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.released_with.append(type(error))
            raise
        self.released_with.append(None)

    def count(self, _: bytes) -> None:
        self.chunks_sent += 1

    def stream(self, chunks: Iterator[bytes]) -> Stream:
        return Stream(chunks, self.open(), self.count)


@pytest.fixture
def resources() -> Resources:
    return Resources()


def test_a_stream_releases_its_resources_at_its_end(resources: Resources) -> None:
    stream = resources.stream(iter([b"a", b"", b"b"]))
    assert resources.released_with == []
    with ThreadPoolExecutor(1) as another_thread:
        assert another_thread.submit(list, stream).result(10) == [b"a", b"", b"b"]
    assert (resources.released_with, resources.chunks_sent) == ([None], 3)


def test_an_error_before_the_first_chunk_is_raised_at_once(resources: Resources) -> None:
    with pytest.raises(BadInput):
        resources.stream(iter(MagicMock(side_effect=BadInput("no")), b""))
    assert resources.released_with == [BadInput]


@pytest.mark.parametrize("chunks_read", [0, 1, 2])
def test_closing_a_stream_closes_its_generator_and_resources(resources: Resources, chunks_read: int) -> None:
    chunks = (b"a" for _ in itertools.count())
    stream = resources.stream(chunks)
    for _ in range(chunks_read):
        next(stream)
    stream.close()
    assert list(chunks) == []
    assert resources.released_with == [GeneratorExit]
    assert list(stream) == []


def test_each_chunk_is_computed_under_the_deadline_of_the_streams_start(resources: Resources) -> None:
    caller_gone = threading.Event()

    def chunk() -> bytes:
        deadline = current()
        assert deadline is not None
        deadline.check()
        return b"a"

    with running(Invocation(time.monotonic() + 60, caller_gone.is_set)):
        stream = resources.stream(iter(chunk, b""))
    assert current() is None
    assert [next(stream), next(stream)] == [b"a", b"a"]
    caller_gone.set()
    with pytest.raises(CallerGone):
        next(stream)


def test_a_stream_whose_last_chunk_was_never_taken_has_stalled(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STREAM_BACKLOG, "seconds", 0.05)
    stream = resources.stream(iter([b"a", b"b"]))
    next(stream)
    time.sleep(0.1)
    stream.close()
    assert resources.released_with == [StreamStalled]


def test_a_caller_who_takes_too_little_loses_the_stream(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STREAM_BACKLOG, "seconds", 0.02)
    slow, fast = (resources.stream(iter([bytes(size)] * 3)) for size in (1, MIN_RATE))
    for stream in (slow, fast):
        next(stream)
    time.sleep(0.1)
    with pytest.raises(StreamStalled):
        next(slow)
    next(fast)
    assert resources.released_with == [StreamStalled]
