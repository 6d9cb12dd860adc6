"""Answers 503 at the public port while nobody else does: during a stop, and before gunicorn alone is up.

The supervisor holds the listening socket. A connection that comes in while the front is on its way out
would be reset if the socket were just closed; here it is told to come back.
"""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector

#: Connections that may be finishing at once; beyond, the oldest is cut off.
MOST = 256
#: Seconds in which a caller may finish sending what nobody will read.
PATIENCE = 1.0


class Doorman:
    """``reason`` gives the sentence for the caller. Lives in the supervisor's event loop."""

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        reason: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.listener, self.selector, self.reason, self.clock = listener, selector, reason, clock
        self._open = False
        self._guests: dict[socket.socket, float] = {}

    def attend(self, wanted: bool) -> None:
        """Answer, or leave the port to the front."""
        if wanted and not self._open:
            self.selector.register(self.listener, EVENT_READ, self._accept)
        elif self._open and not wanted:
            self.selector.unregister(self.listener)
        self._open = wanted
        now = self.clock()
        for guest, until in list(self._guests.items()):
            if now >= until:
                self._leave(guest)

    @property
    def busy(self) -> bool:
        return bool(self._guests)

    def close(self) -> None:
        """Refuse whoever still waits in the queue, then give the port back."""
        self._accept()
        for guest in list(self._guests):
            self._leave(guest)
        self.attend(False)
        self.listener.close()

    def _accept(self) -> None:
        for _ in range(MOST):
            try:
                guest, _address = self.listener.accept()
            except OSError:
                return
            if len(self._guests) >= MOST:
                self._leave(next(iter(self._guests)))
            guest.setblocking(False)
            self._guests[guest] = self.clock() + PATIENCE
            self.selector.register(guest, EVENT_READ, lambda guest=guest: self._read(guest))
            with contextlib.suppress(OSError):
                guest.send(refusal(self.reason()))
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
        self.selector.unregister(guest)
        guest.close()
        del self._guests[guest]


def refusal(reason: str) -> bytes:
    """The contract's 503, whole."""
    error = {"error": reason, "code": "not_ready", "request_id": uuid.uuid4().hex}
    body = json.dumps(error).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
