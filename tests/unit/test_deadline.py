"""A deadline: the time of an invocation, and whether its caller is still connected."""

from __future__ import annotations

import socket
import time

import pytest

from sm.deadline import Deadline, current, running
from sm.errors import CallerGone, DeadlinePassed
from sm.router.wsgi import _is_disconnected


def test_a_deadline_counts_down_and_stops_at_zero() -> None:
    assert 9 < Deadline(time.monotonic() + 10).remaining() <= 10
    assert Deadline(time.monotonic() - 10).remaining() == 0


def test_checking_a_passed_deadline_raises() -> None:
    Deadline(time.monotonic() + 10).check()
    with pytest.raises(DeadlinePassed):
        Deadline(time.monotonic() - 1).check()


def test_checking_the_deadline_of_a_disconnected_caller_raises() -> None:
    with pytest.raises(CallerGone):
        Deadline(time.monotonic() + 10, lambda: True).check()


def test_a_deadline_is_current_only_while_it_runs() -> None:
    deadline = Deadline(time.monotonic() + 10)
    assert current() is None
    with running(deadline):
        assert current() is deadline
    assert current() is None


def test_only_a_closed_connection_counts_as_disconnected() -> None:
    server_side, client_side = socket.socketpair()
    with server_side:
        assert not _is_disconnected(server_side)
        client_side.sendall(b"pipelined")
        assert not _is_disconnected(server_side)
        assert server_side.recv(9) == b"pipelined"
        client_side.close()
        assert _is_disconnected(server_side)
    assert _is_disconnected(server_side)
    assert not _is_disconnected(None)
