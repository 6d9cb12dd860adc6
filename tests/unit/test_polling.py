"""A poll calls its function at an interval until it is stopped, even if the function fails."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from sm.polling import Poll

#: Seconds; longer than any test, so that no poll happens by itself.
NEVER_S = 600.0


def test_the_function_is_called_until_the_poll_is_stopped() -> None:
    polls = threading.Semaphore(0)
    poll = Poll("test", 0.001, polls.release)
    poll.start()
    assert all(polls.acquire(timeout=10) for _ in range(3))
    poll.stop()
    poll.join()
    while polls.acquire(blocking=False):
        pass
    assert not polls.acquire(timeout=0.05)


def test_the_first_call_is_after_an_interval_or_at_once() -> None:
    polled = threading.Event()
    delayed = Poll("later", NEVER_S, polled.set)
    delayed.start()
    delayed.stop()
    delayed.join()
    assert not polled.is_set()
    immediate = Poll("at-once", NEVER_S, polled.set, at_once=True)
    immediate.start()
    assert polled.wait(10)
    immediate.stop()
    immediate.join()


@pytest.mark.parametrize("failure", [lambda: 1 / 0, sys.exit], ids=["exception", "sys.exit"])
def test_a_failed_call_is_logged_and_the_next_one_follows(
    failure: object, caplog: pytest.LogCaptureFixture
) -> None:
    def poll_once() -> None:
        polls.release()
        assert callable(failure)
        failure()

    polls = threading.Semaphore(0)
    poll = Poll("the sweep", 0.001, poll_once)
    with caplog.at_level(logging.ERROR):
        poll.start()
        assert polls.acquire(timeout=10)
        assert polls.acquire(timeout=10)
        poll.stop()
        poll.join()
    assert caplog.messages[0] == "the sweep failed; next try in 0.001 s"
