"""An invocation's time, and its caller."""

from __future__ import annotations

import socket
import time

import pytest

from sm.deadline import Deadline, current, running
from sm.errors import CallerGone, DeadlinePassed
from sm.router.routes.request_handling import _is_disconnected


def test_a_deadline_counts_down_and_stops_at_zero() -> None:
    assert 9 < Deadline(time.monotonic() + 10).remaining() <= 10
    assert Deadline(time.monotonic() - 10).remaining() == 0


def test_a_deadline_that_passed_raises() -> None:
    Deadline(time.monotonic() + 10).check()
    with pytest.raises(DeadlinePassed):
        Deadline(time.monotonic() - 1).check()


def test_a_caller_that_is_gone_raises() -> None:
    with pytest.raises(CallerGone):
        Deadline(time.monotonic() + 10, lambda: True).check()


def test_a_deadline_is_current_only_while_it_runs() -> None:
    deadline = Deadline(time.monotonic() + 10)
    assert current() is None
    with running(deadline):
        assert current() is deadline
    assert current() is None


def test_a_closed_connection_is_told_from_an_idle_and_a_busy_one() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        assert not _is_disconnected(ours)
        theirs.sendall(b"pipelined")
        assert not _is_disconnected(ours)
        assert ours.recv(9) == b"pipelined"
        theirs.close()
        assert _is_disconnected(ours)
    assert _is_disconnected(ours)
    assert not _is_disconnected(None)
