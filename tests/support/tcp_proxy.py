"""A TCP proxy whose connections are slow, are cut, or stop."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

INTERVAL_S = 0.05  # between two bytes of a slow response


@dataclass
class TcpProxy:
    """The proxy's state and its faults.

    Attributes:
        slow_from_byte: The first byte of a connection's responses that is sent slowly; ``None``: the proxy is fast.
        keeps_length: False: remove the header Content-Length.
        budget: Bytes for all callers together; ``None``: no end.
        keeps_open: What is after them. True: callers wait. False: their connections are cut.
        sent: Bytes that callers have got.
        connections: The open connections of callers.
    """

    port: int
    slow_from_byte: int | None = None
    keeps_length: bool = True
    budget: int | None = None
    keeps_open: bool = False
    sent: int = 0
    connections: set[socket.socket] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Count anew, without an end."""
        self.budget, self.sent = None, 0

    def serve(self, caller: socket.socket, target: int) -> None:
        self.connections.add(caller)
        with suppress(OSError), caller, socket.create_connection(("127.0.0.1", target)) as server:
            threading.Thread(target=_forward, args=(caller, server), daemon=True).start()
            self._answer(server, caller)
        self.connections.discard(caller)

    def _answer(self, server: socket.socket, caller: socket.socket) -> None:
        before = 0
        while piece := self._within_budget(server.recv(1 << 16)):
            if not self.keeps_length:
                piece = re.sub(rb"(?i)content-length: \d+\r\n", b"Connection: close\r\n", piece)
            fast = len(piece) if self.slow_from_byte is None else max(0, self.slow_from_byte - before)
            caller.sendall(piece[:fast])
            before += len(piece)
            for byte in piece[fast:]:
                if self.slow_from_byte is not None and self.stopped.wait(INTERVAL_S):
                    return
                caller.sendall(bytes([byte]))
            if not self.keeps_length and b"\r\n\r\n" in piece:
                return

    def _within_budget(self, piece: bytes) -> bytes:
        with self._lock:
            kept = piece if self.budget is None else piece[: max(0, self.budget - self.sent)]
            self.sent += len(kept)
        if piece and not kept and self.keeps_open:
            self.stopped.wait(60)
        return kept


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def tcp_proxy(target: int | str) -> Iterator[TcpProxy]:
    """Run a proxy in front of a port, or the port of a URL, of this machine."""
    port = target if isinstance(target, int) else urlsplit(target).port
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        proxy = TcpProxy(listener.getsockname()[1])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    caller, _ = listener.accept()
                    threading.Thread(target=proxy.serve, args=(caller, port), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
