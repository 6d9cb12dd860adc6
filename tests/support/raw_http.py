"""HTTP byte by byte, for requests that no HTTP library would send."""

from __future__ import annotations

import socket

TIMEOUT_S = 20.0


def exchange(port: int, request: bytes) -> bytes:
    """Send a request to a port of loopback, and return all bytes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))
