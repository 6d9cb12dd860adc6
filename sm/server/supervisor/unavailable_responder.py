"""Answers 503 at the public port while nobody else does: during a stop, and before gunicorn alone is up.

The supervisor holds the listening socket. A connection that comes in while the front is on its way out
would be reset if the socket were just closed; here it is told to come back.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import uuid
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector

#: Connections that may be finishing at once; beyond, they wait in the kernel's queue.
MAX_CONNECTIONS = 256
#: Seconds between two looks at the queue: callers who come back at once are not to keep the cores busy
#: that the last requests need.
POLL_INTERVAL_S = 0.05
#: Seconds in which a caller may finish sending what nobody will read.
CLIENT_TIMEOUT_S = 1.0


class UnavailableResponder:
    """``reason`` gives the sentence for the caller. Lives in the supervisor's event loop."""

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

    def serve(self, wanted: bool) -> None:
        """To be called often: answer who waits if that is ``wanted``, let go who takes too long."""
        now = self._clock()
        for guest in [guest for guest, until in self._guests.items() if now >= until]:
            self._leave(guest)
        if wanted and now >= self._next:
            self._next = now + POLL_INTERVAL_S
            for guest in self._accept():
                self._answer(guest)

    @property
    def busy(self) -> bool:
        return bool(self._guests)

    def close(self) -> None:
        """Give the port back, then answer the last who had come before."""
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
            # No more from this side; closing now would reset the connection under the answer.
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
    """The same at the port with TLS. ``context`` makes the server's side of a handshake."""

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
    """The contract's 503, whole."""
    error = {"error": reason, "code": "not_ready", "request_id": uuid.uuid4().hex}
    body = json.dumps(error).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
