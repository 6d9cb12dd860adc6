"""A request that comes too slowly ends with a 408 after a time that is known before."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sm.errors import RequestTimeout
from sm.server.timed_requests import MIN_RATE, TimedReader

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_piece_that_does_not_come_is_a_timeout_with_the_numbers(pair: Pair) -> None:
    reader = TimedReader(pair[0], 0.01)
    pair[1].sendall(b"abc")
    assert reader.recv(10) == b"abc"
    with pytest.raises(RequestTimeout, match="3 bytes came in 0 s"):
        reader.recv(10)


def test_single_bytes_do_not_prolong_the_time(pair: Pair) -> None:
    clock = Clock()
    reader = TimedReader(pair[0], 10.0, clock)
    for _ in range(10):
        clock.seconds += 0.99
        pair[1].sendall(b"x")
        assert reader.recv(1) == b"x"
    clock.seconds += 0.11
    pair[1].sendall(b"x")
    with pytest.raises(RequestTimeout, match="10 bytes came in 10 s"):
        reader.recv(1)


def test_a_large_body_may_take_as_long_as_the_least_rate_needs(pair: Pair) -> None:
    clock = Clock()
    reader = TimedReader(pair[0], 10.0, clock)
    for _ in range(100):
        clock.seconds += 1.0
        pair[1].sendall(bytes(MIN_RATE))
        assert len(reader.recv(MIN_RATE)) == MIN_RATE


def test_each_request_of_a_connection_has_its_own_time(pair: Pair) -> None:
    clock = Clock()
    reader = TimedReader(pair[0], 10.0, clock)
    clock.seconds = 100.0
    reader.begin_request()
    pair[1].sendall(b"x")
    assert reader.recv(1) == b"x"


def test_what_gunicorn_discards_ends_at_gunicorn_s_own_limit(pair: Pair) -> None:
    reader = TimedReader(pair[0], 10.0)
    reader.settimeout(0.01)
    with pytest.raises(TimeoutError):
        reader.recv(1)
    reader.settimeout(None)
    assert reader.gettimeout() is None
