"""Probe, within a bounded time, whether a child is ready."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path

from sm.run_state import Box
from sm.server.supervisor.process_manager import CONTROL, DATA, KEYS, TRITON
from sm.triton import server

PROBE_TIMEOUT_S = 0.25  # the supervisor does nothing else meanwhile


class Probes:
    """Probes the children of one box."""

    def __init__(self, box: Box, port: int) -> None:
        self._box, self._port = box, port

    def ready(self, name: str) -> bool:
        """True if the child serves. The front is probed through the public port, as callers use it."""
        if name == TRITON:
            # If only liveness is required, one model that does not load must not delay the others.
            probe = server.live if self._box.ping == "live" else server.ready
            return probe(self._box.http_port, self._box.http_keys)
        if name == CONTROL:
            return is_listening(self._box.control_socket)
        if name == KEYS:
            return is_listening(self._box.keys_socket)
        if name == DATA and self._box.fronted:
            return is_listening(self._box.data_socket)
        return is_listening(("127.0.0.1", self._port))

    def failure(self, name: str) -> str:
        """Return a sentence that names the models or clients that cannot be loaded, with the reasons."""
        if name == DATA:
            return self._read_start_error()
        failed_models = server.failures(self._box.http_port, self._box.http_keys) if name == TRITON else {}
        sentences = [
            f"the model {model!r} cannot be loaded: {reason.rstrip('.')}"
            for model, reason in failed_models.items()
        ]
        return f"{'; '.join(sentences)}." if sentences else ""

    def _read_start_error(self) -> str:
        try:
            return self._box.start_error_file.read_text()
        except FileNotFoundError:
            return ""


def is_listening(address: Path | tuple[str, int]) -> bool:
    """True if something that speaks HTTP answers; any answer will do."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family) as sock, contextlib.suppress(OSError, http.client.HTTPException):
        sock.settimeout(PROBE_TIMEOUT_S)
        sock.connect(str(address) if isinstance(address, Path) else address)
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(sock)
        with contextlib.closing(answer):
            answer.begin()
        return True
    return False
