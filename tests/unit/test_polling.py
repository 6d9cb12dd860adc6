"""A poll calls its function every few seconds until it is stopped, whatever the function does."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from sm.polling import Poll

#: No look comes by itself within a test.
NEVER_S = 600.0


def test_it_looks_again_and_again_until_it_is_stopped() -> None:
    looks = threading.Semaphore(0)
    poll = Poll("test", 0.001, looks.release)
    poll.start()
    assert all(looks.acquire(timeout=10) for _ in range(3))
    poll.stop()
    poll.join()
    while looks.acquire(blocking=False):
        pass
    assert not looks.acquire(timeout=0.05)


def test_the_function_may_end_it() -> None:
    def look() -> None:
        looks.append(1)
        poll.stop()

    looks: list[int] = []
    poll = Poll("test", 0.001, look)
    poll.start()
    poll.join()
    assert looks == [1]


def test_the_first_look_is_after_an_interval_or_at_once() -> None:
    looked = threading.Event()
    later = Poll("later", NEVER_S, looked.set)
    later.start()
    later.stop()
    later.join()
    assert not looked.is_set()
    at_once = Poll("at-once", NEVER_S, looked.set, at_once=True)
    at_once.start()
    assert looked.wait(10)
    at_once.stop()
    at_once.join()


@pytest.mark.parametrize("ending", [lambda: 1 / 0, sys.exit])
def test_a_look_that_fails_is_logged_and_the_next_one_comes(
    ending: object, caplog: pytest.LogCaptureFixture
) -> None:
    def look() -> None:
        looks.release()
        assert callable(ending)
        ending()

    looks = threading.Semaphore(0)
    poll = Poll("the sweep", 0.001, look)
    with caplog.at_level(logging.ERROR):
        poll.start()
        assert looks.acquire(timeout=10)
        assert looks.acquire(timeout=10)
        poll.stop()
        poll.join()
    assert caplog.messages[0] == "the sweep failed; next try in 0.001 s"
