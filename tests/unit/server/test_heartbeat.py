"""A worker that loads shows that it lives, until it has loaded or its time is over."""

from __future__ import annotations

import threading

from sm.server.heartbeat import keep_heartbeat


def alive(name: str = "heartbeat") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_it_beats_until_it_is_told_to_stop() -> None:
    beats = threading.Semaphore(0)
    stop = keep_heartbeat(beats.release, seconds=60, interval_s=0.01)
    assert all(beats.acquire(timeout=10) for _ in range(3))
    stop()
    for thread in alive():
        thread.join(10)
    assert not alive()


def test_a_worker_that_loads_for_ever_is_given_up() -> None:
    keep_heartbeat(lambda: None, seconds=0.05, interval_s=0.01)
    for thread in alive():
        thread.join(10)
    assert not alive()
