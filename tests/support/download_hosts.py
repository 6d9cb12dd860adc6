"""Hosts to download from: nginx with a certificate of its own, and a proxy that cuts or stops connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import certificates
from tests.support.boxes import free_port, wait_until

CONFIGURATION = """
daemon off;
user root;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log {folder}/access.log;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {root};
    }}
}}
"""


@contextlib.contextmanager
def https_site(folder: Path, root: Path) -> Iterator[int]:
    """Serve the files of ``root`` with nginx, which sends ranges and ETags; yields the port.

    ``folder`` gets ``box.pem``, which the client must trust, and ``access.log``.
    """
    certificate, key = certificates.write(folder)
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(folder=folder, port=port, certificate=certificate, key=key, root=root)
    )
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    with subprocess.Popen([str(program), "-p", str(folder), "-c", str(configuration)]) as nginx:
        try:
            wait_until(lambda: accepts(port), description="nginx")
            yield port
        finally:
            nginx.terminate()


def accepts(port: int) -> bool:
    """True if somebody listens on a port."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class CuttingProxy:
    """A TCP proxy that stops after some bytes.

    Attributes:
        budget: Bytes for all callers together; ``None``: no end.
        keeps_open: True: callers then wait. False: their connections are cut, and new ones refused.
        sent: Bytes that callers have got.
    """

    port: int
    budget: int | None = None
    keeps_open: bool = False
    sent: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, caller: socket.socket, target: int) -> None:
        with contextlib.suppress(OSError), caller, socket.create_connection(("127.0.0.1", target)) as server:
            threading.Thread(target=_forward, args=(caller, server), daemon=True).start()
            while piece := server.recv(1 << 16):
                with self._lock:
                    if self.budget is not None:
                        piece = piece[: max(0, self.budget - self.sent)]
                    self.sent += len(piece)
                if not piece and self.keeps_open:
                    self.stopped.wait(60)
                if not piece:
                    return
                caller.sendall(piece)

    def reset(self) -> None:
        """Count anew, without an end."""
        self.budget, self.sent = None, 0


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cutting_proxy(target: int) -> Iterator[CuttingProxy]:
    """Run a proxy in front of a port of this machine."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        proxy = CuttingProxy(listener.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = listener.accept()
                    threading.Thread(target=proxy.serve, args=(caller, target), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
