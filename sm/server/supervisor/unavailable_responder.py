"""Answers 503 at the public port while no server does: during a stop, and before gunicorn alone is up.

The supervisor holds the listening socket. If it were just closed, connections that arrive while the front
stops would be reset; here they are told to come back.
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
    """Answers callers in the supervisor's event loop. ``reason`` returns the sentence."""

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        reason: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._selector, self._reason, self._clock = listener, selector, reason, clock
        self._guests: dict[socket.socket, float] = {}
        self._next = 0.0

    def serve(self, active: bool) -> None:
        """Accept and answer callers if ``wanted``, and drop slow ones; to be called often."""
        now = self._clock()
        for guest in [guest for guest, until in self._guests.items() if now >= until]:
            self._leave(guest)
        if active and now >= self._next:
            self._next = now + POLL_INTERVAL_S
            for guest in self._accept():
                self._answer(guest)

    @property
    def busy(self) -> bool:
        return bool(self._guests)

    def close(self) -> None:
        """Close the port, then answer the callers that had connected before."""
        last = self._accept()
        self._listener.close()
        for guest in last:
            self._answer(guest)

    def _accept(self) -> list[socket.socket]:
        accepted: list[socket.socket] = []
        while len(accepted) + len(self._guests) < MAX_CONNECTIONS:
            try:
                guest, _ = self._listener.accept()
            except OSError:
                break
            accepted.append(guest)
        return accepted

    def _answer(self, guest: socket.socket) -> None:
        guest.setblocking(False)
        self._guests[guest] = self._clock() + CLIENT_TIMEOUT_S
        self._selector.register(guest, EVENT_READ, lambda: self._read(guest))
        with contextlib.suppress(OSError):
            guest.send(refusal(self._reason()))
            # Close the sending side only: a full close now would reset the connection before the answer is
            # read.
            guest.shutdown(socket.SHUT_WR)

    def _read(self, guest: socket.socket) -> None:
        try:
            while guest.recv(1 << 16):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self._leave(guest)

    def _leave(self, guest: socket.socket) -> None:
        self._selector.unregister(guest)
        guest.close()
        del self._guests[guest]


class TlsUnavailableResponder(UnavailableResponder):
    """The same at the port with TLS. ``context`` returns the server's TLS context."""

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

    def _answer(self, guest: socket.socket) -> None:
        guest.setblocking(False)
        try:
            encrypted = self._context().wrap_socket(guest, server_side=True, do_handshake_on_connect=False)
        except OSError:
            guest.close()
            return
        self._guests[encrypted] = self._clock() + CLIENT_TIMEOUT_S
        self._selector.register(encrypted, EVENT_READ, lambda: self._go_on_shaking_hands(encrypted))

    def _go_on_shaking_hands(self, guest: ssl.SSLSocket) -> None:
        try:
            guest.do_handshake()
        except ssl.SSLWantReadError:
            return
        except OSError:
            self._leave(guest)
            return
        self._selector.modify(guest, EVENT_READ, lambda: self._read(guest))
        with contextlib.suppress(OSError):
            guest.send(refusal(self._reason()))
        with contextlib.suppress(OSError):
            guest.unwrap()  # says that no more follows, and does not wait for the caller's word
        with contextlib.suppress(OSError):
            guest.shutdown(socket.SHUT_WR)


def refusal(reason: str) -> bytes:
    """Return the complete 503 response."""
    request_id = uuid.uuid4().hex
    body = json.dumps(error_body(reason, NotReady.code, request_id)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
