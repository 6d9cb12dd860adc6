"""A TCP proxy in front of a fake S3 that sends responses byte by byte, or without their Content-Length."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

INTERVAL_S = 0.05  # between two bytes


@dataclass
class DrippingProxy:
    """The proxy's state and its faults.

    Attributes:
        slow_from_byte: The first byte of a response that is sent slowly; ``None``: the proxy is fast.
        keeps_length: False: remove the header Content-Length.
        connections: The open connections of callers.
    """

    url: str
    slow_from_byte: int | None = None
    keeps_length: bool = True
    connections: set[socket.socket] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    def serve(self, caller: socket.socket, moto: str) -> None:
        host, port = moto.removeprefix("http://").split(":")
        self.connections.add(caller)
        with suppress(OSError), caller, socket.create_connection((host, int(port))) as upstream:
            threading.Thread(target=forward, args=(caller, upstream), daemon=True).start()
            self._answer(upstream, caller)
        self.connections.discard(caller)

    def _answer(self, upstream: socket.socket, caller: socket.socket) -> None:
        sent = 0
        while piece := upstream.recv(1 << 16):
            if not self.keeps_length:
                piece = re.sub(rb"(?i)content-length: \d+\r\n", b"Connection: close\r\n", piece)
            fast = len(piece) if self.slow_from_byte is None else max(0, self.slow_from_byte - sent)
            caller.sendall(piece[:fast])
            sent += len(piece)
            for byte in piece[fast:]:
                if self.slow_from_byte is not None and self.stopped.wait(INTERVAL_S):
                    return
                caller.sendall(bytes([byte]))
            if not self.keeps_length and b"\r\n\r\n" in piece:
                return


def forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def running_dripping_proxy(moto: str) -> Iterator[DrippingProxy]:
    """Run a proxy in front of ``moto``, a URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        proxy = DrippingProxy(f"http://127.0.0.1:{server.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):
                while not proxy.stopped.is_set():
                    caller, _ = server.accept()
                    threading.Thread(target=proxy.serve, args=(caller, moto), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.stopped.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
