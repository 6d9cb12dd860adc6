"""HTTP byte by byte, for requests that no HTTP library would send, and answers that are read slowly or not at all."""

from __future__ import annotations

import socket

TIMEOUT_S = 20.0


def exchange(port: int, request: bytes) -> bytes:
    """Send a request to a port of loopback, and return all bytes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def begin_post(
    port: int, path: str, body: bytes, *headers: str, content_type: str = "application/json"
) -> socket.socket:
    """Send a request on a connection of its own, and return that."""
    lines = ("Host: box", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers)
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", *lines, "", "")).encode() + body)
    return connection
