"""How long a request may take to arrive. tests/integration/server/test_error_responses.py has those that are too slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

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


def test_a_large_body_may_take_as_long_as_the_minimum_rate_needs(sockets: SocketPair) -> None:
    clock = Clock()
    reader = TimedReader(sockets[0], 10.0, clock)
    for _ in range(100):
        clock.seconds += 1.0
        sockets[1].sendall(bytes(MIN_RATE))
        assert len(reader.recv(MIN_RATE)) == MIN_RATE
