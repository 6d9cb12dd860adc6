"""A deadline: the time of an invocation, and whether its caller is still connected."""

from __future__ import annotations

import socket
import time

from sm.deadline import Deadline, current, running
from sm.router.wsgi import _is_disconnected


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
