"""How long a request may take to arrive. tests/integration/server/test_error_responses.py has those that are too slow."""

from __future__ import annotations

import socket
from itertools import count

from sm.server.thread_worker import MIN_RATE, TimedReader


def test_a_large_body_may_take_as_long_as_the_minimum_rate_needs() -> None:
    seconds, (caller, server) = count(), socket.socketpair()
    with caller, server:
        reader = TimedReader(server, 10.0, lambda: float(next(seconds)))
        for _ in range(100):
            caller.sendall(bytes(MIN_RATE))
            assert len(reader.recv(MIN_RATE)) == MIN_RATE
