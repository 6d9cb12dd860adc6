"""A TCP server of a test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def socket_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Call ``serve`` in a thread for each connection, and end all of them with the block. Yields the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threads: list[Thread] = []
    connections: list[socket.socket] = []

    def run(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(listener.accept()[0])
                threads.append(Thread(target=run, args=(connections[-1],)))
                threads[-1].start()

    acceptor = Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(30)
