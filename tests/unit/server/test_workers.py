"""A worker sends heartbeats while it loads, and gives a large body the time that it needs."""

from __future__ import annotations

import socket
import threading
from itertools import count

from sm.server.thread_worker import MIN_RATE, TimedReader
from sm.server.worker import keep_heartbeat


def test_heartbeats_are_sent_until_stopped_or_the_time_limit() -> None:
    beats = threading.Semaphore(0)
    stop = keep_heartbeat(beats.release, seconds=60, interval_s=0.01)
    keep_heartbeat(lambda: None, seconds=0.05, interval_s=0.01)
    assert all(beats.acquire(timeout=10) for _ in range(3))
    stop()
    for thread in [thread for thread in threading.enumerate() if thread.name == "heartbeat"]:
        thread.join(10)
        assert not thread.is_alive()


# tests/integration/streaming/test_error_responses.py has those that are too slow.
def test_a_large_body_may_take_as_long_as_the_minimum_rate_needs() -> None:
    seconds, (caller, server) = count(), socket.socketpair()
    with caller, server:
        reader = TimedReader(server, 10.0, lambda: float(next(seconds)))
        for _ in range(100):
            caller.sendall(bytes(MIN_RATE))
            assert len(reader.recv(MIN_RATE)) == MIN_RATE
