"""A unary gRPC client on plain sockets: one call at a time on each connection.

gRPC's Python client spends five times as long on a call as this does: it hands each from thread to thread.
Here the thread that asks also waits. HTTP/2: RFC 9113; gRPC over it:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Headers are read in the forms that gRPC's
servers use; any other is :class:`Unreadable`, and a case for gRPC's own client.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from grpc import StatusCode

from sm.triton.call_failures import Failed, failed
from sm.triton.hpack import fields, head, literal

#: Bytes of a message that go into one frame, whatever the other side's settings.
MAX_FRAME_BYTES = 2**14 - 5
#: Types and flags of frames.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
#: A window as wide as can be, and the one that everybody begins with.
WIDEST, FIRST_WINDOW = 2**31 - 1, 2**16 - 1
#: Milliseconds.
GRACE_MS = 20
#: Send WINDOW_UPDATE after this many received bytes.
WINDOW_UPDATE_BYTES = 2**30
LAST_STREAM = 2**31 - 1
#: The number of a status, as gRPC's servers write it.
STATUS = re.compile(rb"[0-9]{1,3}")
CODES = {code.value[0]: code for code in StatusCode}


class Unreadable(Exception):
    """An answer in a form that is not read here. Headers come with it: the server has done with the call."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _settings(values: Mapping[int, int]) -> bytes:
    return b"".join(struct.pack(">HI", *pair) for pair in values.items())


#: Bytes that are read at a time, and a frame's at most: what is there of one is copied with each reading.
CHUNK = 2**18
#: No table of headers that later blocks refer to (1), no pushes (2), windows (4) of any size, frames (5).
PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, _settings({1: 0, 2: 0, 4: WIDEST, 5: CHUNK}))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDEST - FIRST_WINDOW))
)


class Connection:
    """To a server on loopback. Whoever has it, has it alone: it is no use after anything was raised."""

    def __init__(self, port: int, seconds: float) -> None:
        """:class:`Failed` if nobody is there."""
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        except OSError:
            raise failed(StatusCode.UNAVAILABLE, "failed to connect") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel minds the time: with a time-out of Python's own, each look at the socket is two calls.
        self._socket.settimeout(None)
        self._patience = 0.0
        self._stream = -1
        #: Received and not yet looked at.
        self._buffer = b""
        #: Bytes that the server takes, and bytes from it that it was not told of again.
        self._window, self._untold = FIRST_WINDOW, 0
        self._status = b""
        self._said = b""
        self._parts: list[bytes] = []
        self._ended = False
        self.usable = True
        self._send(PREFACE)

    def fresh(self) -> bool:
        """Whether it can take a call: the server may have closed it meanwhile, or said that it will."""
        try:
            while content := self._socket.recv(2**16, socket.MSG_DONTWAIT):
                self._take(content)
            return False
        except BlockingIOError:
            # Half a frame would take the beginning of the next answer for its end.
            sound = self.usable and not self._buffer
            return sound and self._window >= MAX_FRAME_BYTES + 5 and self._stream < LAST_STREAM
        except (OSError, Failed, Unreadable):
            return False

    def send(self, head: bytes, message: bytes, seconds: float) -> None:
        """Send a call. The server is told of a little more time: its end is for this side to say."""
        self._stream += 2
        self._status, self._said, self._parts, self._ended = b"", b"", [], False
        block = head + b"\x00" + literal("grpc-timeout") + literal(f"{int(seconds * 1000) + GRACE_MS}m")
        self._window -= len(message) + 5
        self._send(
            frame(HEADERS, END_HEADERS, self._stream, block)
            + frame(DATA, END_STREAM, self._stream, b"\0" + struct.pack(">I", len(message)) + message)
        )

    def receive(self, seconds: float) -> bytes | None:
        """The answer's message; None if it is not there by then.

        :class:`Failed` for any other status, :class:`Unreadable` where nothing is known of the answer.
        """
        self._wait_for(max(0.001, seconds))
        while not self._ended:
            try:
                content = self._socket.recv(CHUNK)
            except BlockingIOError:
                return None
            except OSError:
                content = b""
            if not content:
                raise failed(StatusCode.UNAVAILABLE, "the connection ended")
            self._take(content)
        # Not kept until the next call: it may be megabytes.
        parts, self._parts = self._parts, []
        message = b"".join(parts)
        whole = message[:1] == b"\0" and int.from_bytes(message[1:5], "big") == len(message) - 5
        if self._status == b"0" and whole:
            return message[5:]
        if self._status == b"0" or not STATUS.fullmatch(self._status):
            raise Unreadable("the answer is not one uncompressed message, or has no status")
        code = CODES.get(int(self._status), StatusCode.UNKNOWN)
        raise failed(code, unquote_to_bytes(self._said).decode(errors="replace"))

    def close(self) -> None:
        """The server drops what this connection has asked for."""
        self._socket.close()

    def _wait_for(self, seconds: float) -> None:
        if seconds != self._patience:
            interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
            self._patience = seconds

    def _send(self, content: bytes) -> None:
        try:
            self._socket.sendall(content)
        except OSError:
            raise failed(StatusCode.UNAVAILABLE, "the connection ended") from None

    def _take(self, content: bytes) -> None:
        """Look at all frames that are there whole."""
        buffer = self._buffer + content if self._buffer else content
        at = 0
        while at + 9 <= len(buffer):
            size, kind, flags, stream = _opened(buffer, at)
            end = at + 9 + size
            if end > len(buffer):
                break
            self._one(kind, flags, stream, buffer[at + 9 : end])
            at = end
        self._buffer = buffer[at:]

    def _one(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            self._headers(flags, stream, payload)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._send(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == GOAWAY:
            self.usable = False
        elif kind == RST_STREAM and stream == self._stream and not self._ended:
            # Behind an answer it says only that the rest of the question is not wanted.
            raise failed(StatusCode.UNAVAILABLE, "the call was ended")

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._untold += len(payload)
        if self._untold > WINDOW_UPDATE_BYTES:
            self._send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._untold)))
            self._untold = 0
        if self._awaited(stream):
            self._parts.append(_without_padding(payload) if flags & PADDED else payload)
            self._ended = bool(flags & END_STREAM)

    def _awaited(self, stream: int) -> bool:
        """Whether a frame of this stream may be the answer's. Behind its end it is a reason to leave."""
        if stream == self._stream and self._ended:
            self.usable = False
        return stream == self._stream and not self._ended

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not self._awaited(stream):
            return
        if not flags & END_HEADERS:
            raise Unreadable("its headers have more than one frame")
        if flags & PADDED:
            payload = _without_padding(payload)
        try:
            said = fields(payload[5:] if flags & PRIORITY else payload)
        except (ValueError, IndexError) as error:
            raise Unreadable(f"its headers have {error}") from None
        self._status = said.get(b"grpc-status", self._status)
        self._said = said.get(b"grpc-message", self._said)
        self._ended = bool(flags & END_STREAM)


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Unreadable("a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


def _opened(buffer: bytes, at: int) -> tuple[int, int, int, int]:
    """Size, type, flags and stream of the frame that begins there."""
    first, low, kind, flags, stream = struct.unpack_from(">HBBBI", buffer, at)
    return first << 8 | low, kind, flags, stream & LAST_STREAM


class ConnectionPool:
    """Connections to a server for one method; any number of threads may call at once."""

    def __init__(self, port: int, path: str, metadata: Mapping[str, str]) -> None:
        self._port = port
        self._head = head(path, f"127.0.0.1:{port}", metadata)
        #: The last used is the next: its memory is warm.
        self._idle: list[Connection] = []

    def acquire(self, message: bytes, seconds: float) -> Connection:
        """A connection on which ``message`` is asked; :class:`Failed` if it cannot be."""
        connection = self._take() or Connection(self._port, seconds)
        try:
            connection.send(self._head, message, seconds)
        except BaseException:
            connection.close()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """It has had its answer."""
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection | None:
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if connection.fresh():
                    return connection
                connection.close()
        return None
