"""A deadline: the time of an invocation, and whether its caller is still connected."""

from __future__ import annotations

import socket

from sm.router.wsgi import _is_disconnected


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
