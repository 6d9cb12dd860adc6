"""The server side of a WebSocket (RFC 6455) after the handshake.

wsproto implements the protocol, on the worker's own socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from sm.errors import CallerGone

#: Bytes of one read.
READ_BYTES = 2**18
#: Seconds between two checks whether the box is stopping.
POLL_INTERVAL_S = 0.5
#: Seconds that the caller gets for the closing handshake.
CLOSE_TIMEOUT_S = 1.0


class WebSocket:
    """One connection, for one thread.

    A message of more than ``max_bytes`` ends it (1009), as does a frame that breaks the protocol (1002) or a
    text that is not UTF-8 (1007).
    """

    def __init__(self, connection: socket.socket, max_bytes: int) -> None:
        self._socket, self._max_bytes = connection, max_bytes
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._protocol = Connection(ConnectionType.SERVER)
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()

    def messages(self, idle_timeout_s: float, is_stopping: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the caller's messages, then close the connection.

        Args:
            idle_timeout_s: Ends the connection if the caller sends nothing for so long.
            is_stopping: Ends the connection when it returns True.
        """
        idle_until = time.monotonic() + idle_timeout_s
        while self._open and not is_stopping():
            if self._messages:
                yield self._messages.popleft()
                idle_until = time.monotonic() + idle_timeout_s
            elif time.monotonic() > idle_until:
                break
            else:
                self._receive(POLL_INTERVAL_S)
        self.close(CloseReason.GOING_AWAY)

    def send(self, payload: bytes, text: bool) -> None:
        """Send a message. Raises :class:`CallerGone` if the connection is closed."""
        while self._open and not self._messages and self._receive(0):
            pass
        if not self._open:
            raise CallerGone("the caller closed the connection")
        self._write(TextMessage(payload.decode("utf-8", "replace")) if text else BytesMessage(payload))

    def close(self, code: int, reason: str | None = None, is_broken: bool = False) -> None:
        """Close the connection if it is open; the server closes the socket.

        Args:
            code: Tells the caller why.
            reason: The same in words.
            is_broken: True if what the caller sends cannot be parsed any more.
        """
        with contextlib.suppress(OSError):
            if self._open:
                self._write(CloseConnection(code, reason))
                self._wait_for_close(is_broken)
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def _open(self) -> bool:
        return self._protocol.state is ConnectionState.OPEN

    def _wait_for_close(self, is_broken: bool) -> None:
        """Discard what the caller still sends, until it has the close frame or the time is over.

        Closing the socket with unread data would reset it before the close frame is read.
        """
        end = time.monotonic() + CLOSE_TIMEOUT_S
        while self._protocol.state is ConnectionState.LOCAL_CLOSING:
            seconds = end - time.monotonic()
            if seconds <= 0 or not self._poll.poll(seconds * 1000):
                return
            received = self._socket.recv(READ_BYTES)
            if not received:
                return
            if not is_broken:
                self._protocol.receive_data(received)
                is_broken = any(isinstance(event, CloseConnection) for event in self._protocol.events())

    def _receive(self, timeout_s: float) -> bool:
        """Read what has arrived; False if nothing arrives in time."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        try:
            self._protocol.receive_data(self._socket.recv(READ_BYTES) or None)
            for event in self._protocol.events():
                self._handle(event)
                if not self._open:
                    break
        except OSError:
            self._protocol.receive_data(None)
        return True

    def _handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._partial += event.data.encode() if isinstance(event.data, str) else event.data
            if len(self._partial) > self._max_bytes:
                self.close(CloseReason.MESSAGE_TOO_BIG)
            elif event.message_finished:
                self._messages.append(bytes(self._partial))
                self._partial.clear()
        elif isinstance(event, CloseConnection) and self._open:
            # wsproto reports a broken rule of the protocol as a close that leaves the connection open.
            self.close(event.code, event.reason, is_broken=True)
        elif isinstance(event, Ping) or (
            isinstance(event, CloseConnection) and self._protocol.state is ConnectionState.REMOTE_CLOSING
        ):
            self._write(event.response())

    def _write(self, event: Event) -> None:
        self._socket.sendall(self._protocol.send(event))
