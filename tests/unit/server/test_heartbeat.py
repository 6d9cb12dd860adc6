"""A worker that loads sends heartbeats until it is loaded or its time is over."""

from __future__ import annotations

import threading

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
