"""Requests whose answers are read slowly or not at all."""

from __future__ import annotations

import socket

from tests.support.boxes import RunningBox


def begin_post(
    box: RunningBox, path: str, body: bytes, *headers: str, content_type: str = "application/json"
) -> socket.socket:
    """Send a request on a connection of its own, and return that."""
    lines = ("Host: box", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers)
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=60)
    connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", *lines, "", "")).encode() + body)
    return connection
