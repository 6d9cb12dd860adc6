"""A request that arrives too slowly ends with a 408 after a known time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sm.errors import RequestTimeout
from sm.server.thread_worker import MIN_RATE, TimedReader

SocketPair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[SocketPair]:
    connected = socket.socketpair()
    yield connected
    for endpoint in connected:
        endpoint.close()


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_timeout_says_how_many_bytes_came_in_which_time(sockets: SocketPair) -> None:
    reader = TimedReader(sockets[0], 0.01)
    sockets[1].sendall(b"abc")
    assert reader.recv(10) == b"abc"
    with pytest.raises(RequestTimeout, match="3 bytes came in 0 s"):
        reader.recv(10)


def test_single_bytes_do_not_extend_the_time(sockets: SocketPair) -> None:
    clock = Clock()
    reader = TimedReader(sockets[0], 10.0, clock)
    for _ in range(10):
        clock.seconds += 0.99
        sockets[1].sendall(b"x")
        assert reader.recv(1) == b"x"
    clock.seconds += 0.11
    sockets[1].sendall(b"x")
    with pytest.raises(RequestTimeout, match="10 bytes came in 10 s"):
        reader.recv(1)


def test_a_large_body_may_take_as_long_as_the_minimum_rate_needs(sockets: SocketPair) -> None:
    clock = Clock()
    reader = TimedReader(sockets[0], 10.0, clock)
    for _ in range(100):
        clock.seconds += 1.0
        sockets[1].sendall(bytes(MIN_RATE))
        assert len(reader.recv(MIN_RATE)) == MIN_RATE


def test_each_request_of_a_connection_has_its_own_time_limit(sockets: SocketPair) -> None:
    clock = Clock()
    reader = TimedReader(sockets[0], 10.0, clock)
    clock.seconds = 100.0
    reader.begin_request()
    sockets[1].sendall(b"x")
    assert reader.recv(1) == b"x"


def test_reading_with_gunicorns_own_timeout_ends_at_that_timeout(sockets: SocketPair) -> None:
    reader = TimedReader(sockets[0], 10.0)
    reader.settimeout(0.01)
    with pytest.raises(TimeoutError):
        reader.recv(1)
    reader.settimeout(None)
    assert reader.gettimeout() is None
