"""HTTP byte by byte, for requests that no HTTP library would send."""

from __future__ import annotations

import socket

TIMEOUT_S = 20.0


def exchange(port: int, request: bytes, *, half_close: bool = False) -> bytes:
    """Send a request on a connection of its own; return all bytes until the server closes it.

    Args:
        port: The server's port on loopback.
        request: The bytes to send.
        half_close: Tell the server that no further bytes will come.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))
