"""Answers 503 at the public port while no server does: during a stop, and before gunicorn alone is up.

If the supervisor just closed the listening socket, connections that arrive while the front stops would be
reset. Instead they get a 503 that tells them to retry.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import uuid
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector

from sm.errors import NotReady, error_body

#: Connections that are answered at once; further ones wait in the kernel's queue.
MAX_CONNECTIONS = 256
#: Seconds between two accepts: callers that retry at once must not use the processor time that the last
#: requests need.
POLL_INTERVAL_S = 0.05
#: Seconds that a caller gets to finish sending its request, which is discarded.
CLIENT_TIMEOUT_S = 1.0


class UnavailableResponder:
    """Answers callers in the supervisor's event loop. ``reason`` returns the sentence for them."""

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        reason: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._selector, self._reason, self._clock = listener, selector, reason, clock
        self._connections: dict[socket.socket, float] = {}
        self._next_accept = 0.0

    def serve(self, active: bool) -> None:
        """Accept and answer callers if ``active``, and drop slow ones; to be called often."""
        now = self._clock()
        for connection in [connection for connection, until in self._connections.items() if now >= until]:
            self._close_connection(connection)
        if active and now >= self._next_accept:
            self._next_accept = now + POLL_INTERVAL_S
            for connection in self._accept():
                self._answer(connection)

    @property
    def busy(self) -> bool:
        return bool(self._connections)

    def close(self) -> None:
        """Close the port, then answer the callers that had connected before."""
        waiting = self._accept()
        self._listener.close()
        for connection in waiting:
            self._answer(connection)

    def _accept(self) -> list[socket.socket]:
        accepted: list[socket.socket] = []
        while len(accepted) + len(self._connections) < MAX_CONNECTIONS:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            accepted.append(connection)
        return accepted

    def _answer(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connections[connection] = self._clock() + CLIENT_TIMEOUT_S
        self._selector.register(connection, EVENT_READ, lambda: self._read(connection))
        with contextlib.suppress(OSError):
            connection.send(unavailable_response(self._reason()))
            # Close the sending side only: a full close now would reset the connection before the answer is
            # read.
            connection.shutdown(socket.SHUT_WR)

    def _read(self, connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close_connection(connection)

    def _close_connection(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._connections[connection]


class TlsUnavailableResponder(UnavailableResponder):
    """Answers at the TLS port. ``context`` returns the server's TLS context."""

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        reason: Callable[[], str],
        clock: Callable[[], float],
        context: Callable[[], ssl.SSLContext],
    ) -> None:
        super().__init__(listener, selector, reason, clock)
        self._context = context

    def _answer(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            encrypted = self._context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        except OSError:
            connection.close()
            return
        self._connections[encrypted] = self._clock() + CLIENT_TIMEOUT_S
        self._selector.register(encrypted, EVENT_READ, lambda: self._continue_handshake(encrypted))

    def _continue_handshake(self, connection: ssl.SSLSocket) -> None:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            return
        except OSError:
            self._close_connection(connection)
            return
        self._selector.modify(connection, EVENT_READ, lambda: self._read(connection))
        with contextlib.suppress(OSError):
            connection.send(unavailable_response(self._reason()))
        with contextlib.suppress(OSError):
            connection.unwrap()  # sends the end of the TLS stream, and does not wait for the caller's
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def unavailable_response(reason: str) -> bytes:
    """Return the complete 503 response."""
    request_id = uuid.uuid4().hex
    body = json.dumps(error_body(reason, NotReady.code, request_id)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
