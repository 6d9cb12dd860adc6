"""A poll calls its function at an interval until it is stopped, even if the function fails."""

from __future__ import annotations

import sys
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from sm.polling import Poll, SharedQuestion, stop_all
from tests.support.boxes import wait_until


@pytest.mark.parametrize("failure", [lambda: 1 / 0, sys.exit], ids=["exception", "sys.exit"])
def test_a_failed_call_does_not_stop_a_poll(failure: Any, caplog: pytest.LogCaptureFixture) -> None:
    polls = threading.Semaphore(0)

    def poll_once() -> None:
        polls.release()
        failure()

    poll = Poll("the sweep", 0.001, poll_once)
    poll.start()
    assert all(polls.acquire(timeout=10) for _ in range(2))
    poll.stop()
    poll.join()
    assert caplog.records[0].exc_info
    while polls.acquire(blocking=False):
        pass
    assert not polls.acquire(timeout=0.05), "it was stopped"


def test_a_process_that_ends_waits_for_running_calls_and_begins_no_other() -> None:
    entered, may_end, calls = threading.Event(), threading.Event(), list[str]()

    def call_slowly() -> None:
        entered.set()
        assert may_end.wait(20)
        calls.append("slow")

    Poll("slow", 0.001, call_slowly).start()
    Poll("quick", 0.001, lambda: calls.append("quick")).start()
    assert entered.wait(10)
    stop_all(0.05)  # the slow call goes on: a stop has a bound
    before = calls.copy()
    assert "slow" not in before
    may_end.set()
    stop_all(10)
    assert calls == [*before, "slow"]


def test_nobody_waits_longer_than_its_patience_and_an_old_answer_is_better_than_none() -> None:
    calls, go_on, now = list[int](), threading.Event(), 0.0

    def answer_slowly() -> int:
        calls.append(1)
        assert go_on.wait(20)
        return len(calls)

    question = SharedQuestion(answer_slowly, 10.0, 5.0, lambda: now)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            question.ask(0.01)
    go_on.set()
    assert question.ask(20.0) == 1
    now = 11.0
    go_on.clear()
    assert [question.ask(0.01) for _ in range(3)] == [1, 1, 1]
    assert len(calls) == 2
    go_on.set()
    wait_until(lambda: question.ask(20.0) == 2)


def test_a_failure_is_remembered_for_its_own_time() -> None:
    function, now = Mock(side_effect=ValueError("away")), 0.0
    question = SharedQuestion(function, 10.0, 5.0, lambda: now)
    for _ in range(20):
        with pytest.raises(ValueError, match="away"):
            question.ask(20.0)
    assert function.call_count == 1
    now, function.side_effect = 6.0, [2]
    assert question.ask(20.0) == 2
