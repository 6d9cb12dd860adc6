"""A unary gRPC client on plain sockets: one call at a time on each connection.

gRPC's Python client spends five times as long on a call as this does: it hands each from thread to thread.
Here the thread that asks also waits. HTTP/2: RFC 9113; gRPC over it:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Headers are read in the forms that gRPC's
servers use; any other is :class:`Unreadable`, and a case for gRPC's own client.
"""

from __future__ import annotations

import contextlib
import copy
import re
import socket
import struct
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from grpc import StatusCode

from sm.triton.call_failures import Failed, failed
from sm.triton.hpack import fields, head, literal

#: Bytes of a message in one frame, which every server accepts.
MAX_FRAME_BYTES = 2**14 - 5
#: Types and flags of frames.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
#: The widest window, and the default one.
MAX_WINDOW_BYTES, DEFAULT_WINDOW_BYTES = 2**31 - 1, 2**16 - 1
#: Milliseconds that the call's own deadline is longer, so that this side ends it first.
DEADLINE_GRACE_MS = 20
#: Send WINDOW_UPDATE after this many received bytes.
WINDOW_UPDATE_BYTES = 2**30
MAX_STREAM_ID = 2**31 - 1
#: The number of a status, as gRPC's servers write it.
STATUS = re.compile(rb"[0-9]{1,3}")
CODES = {code.value[0]: code for code in StatusCode}
#: gRPC statuses for the error codes of a stream's reset; others are INTERNAL.
RESETS = {
    7: StatusCode.UNAVAILABLE,
    8: StatusCode.CANCELLED,
    11: StatusCode.RESOURCE_EXHAUSTED,
    12: StatusCode.PERMISSION_DENIED,
}


class Unreadable(Exception):
    """An answer in a form that is not supported here. It comes with the headers, so the server has finished
    the call.
    """


#: The head of a frame: its size as two bytes and one, type, flags, stream.
FRAME_HEAD = struct.Struct(">HBBBI")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return FRAME_HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def _settings(values: Mapping[int, int]) -> bytes:
    return b"".join(struct.pack(">HI", *pair) for pair in values.items())


#: Bytes of one read, and the largest frame. Incomplete frames are copied with each read.
READ_BYTES = 2**18
#: Identifiers of HTTP/2's settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5


def preface(window: int = MAX_WINDOW_BYTES) -> bytes:
    """Return the first bytes of a connection. ``window``: bytes that the server may send before it waits."""
    settings = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: window, MAX_FRAME_SIZE: READ_BYTES}
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0, _settings(settings))
        + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window - DEFAULT_WINDOW_BYTES))
    )


PREFACE = preface()


class Connection:
    """A connection to a server on loopback, for one thread at a time. After an exception it must be
    closed.
    """

    def __init__(self, port: int, seconds: float) -> None:
        """Connect. Raises :class:`Failed` if the server is not there."""
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        except OSError:
            raise failed(StatusCode.UNAVAILABLE, "failed to connect") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel applies the time-out: with one of Python's, each read is two system calls.
        self._socket.settimeout(None)
        self._patience = 0.0
        self._stream = -1
        #: Received bytes that were not parsed yet.
        self._buffer = b""
        #: The send window, and received bytes that were not acknowledged with WINDOW_UPDATE.
        self._window, self._untold = DEFAULT_WINDOW_BYTES, 0
        self._status = b""
        self._message = b""
        self._parts: list[bytes] = []
        self._ended = False
        self.usable = True
        self._send(PREFACE)

    def fresh(self) -> bool:
        """True if the connection can take a call: the server may have closed it, or announced that it
        will.
        """
        try:
            while content := self._socket.recv(2**16, socket.MSG_DONTWAIT):
                self._take(content)
            return False
        except BlockingIOError:
            # With half a frame in the buffer, the next answer would be parsed from its middle.
            sound = self.usable and not self._buffer
            return sound and self._window >= MAX_FRAME_BYTES + 5 and self._stream < MAX_STREAM_ID
        except (OSError, Failed, Unreadable):
            return False

    def send(self, head: bytes, message: bytes, seconds: float) -> None:
        """Send a call. The server gets a slightly longer deadline, so that this side ends the call."""
        self._stream += 2
        self._status, self._message, self._parts, self._ended = b"", b"", [], False
        block = (
            head + b"\x00" + literal("grpc-timeout") + literal(f"{int(seconds * 1000) + DEADLINE_GRACE_MS}m")
        )
        self._window -= len(message) + 5
        self._send(
            frame(HEADERS, END_HEADERS, self._stream, block)
            + frame(DATA, END_STREAM, self._stream, b"\0" + struct.pack(">I", len(message)) + message)
        )

    def receive(self, seconds: float) -> bytes | None:
        """Return the answer's message; None if it did not arrive in time.

        Raises :class:`Failed` for an error status, and :class:`Unreadable` if nothing is known of the answer.
        """
        self._wait_for(max(0.001, seconds))
        while not self._ended:
            try:
                content = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                content = b""
            if not content:
                raise failed(StatusCode.UNAVAILABLE, "the connection ended")
            self._take(content)
        # Release the parts now; they may be megabytes.
        parts, self._parts = self._parts, []
        message = b"".join(parts)
        is_complete = message[:1] == b"\0" and int.from_bytes(message[1:5], "big") == len(message) - 5
        if self._status == b"0" and is_complete:
            return message[5:]
        if self._status == b"0" or not STATUS.fullmatch(self._status):
            raise Unreadable("the answer is not one uncompressed message, or has no status")
        code = CODES.get(int(self._status), StatusCode.UNKNOWN)
        raise failed(code, unquote_to_bytes(self._message).decode(errors="replace"))

    def close(self) -> None:
        """Close the connection. The server drops its call."""
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
        """Parse all complete frames."""
        buffer = self._buffer + content if self._buffer else content
        at = 0
        while at + 9 <= len(buffer):
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(buffer, at)
            end = at + 9 + (high << 8 | low)
            if end > len(buffer):
                break
            self._handle_frame(kind, flags, stream & MAX_STREAM_ID, buffer[at + 9 : end])
            at = end
        self._buffer = buffer[at:]

    def _handle_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            self._headers(flags, stream, payload)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._send(frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == SETTINGS and not _has_room(payload):
                self.usable = False
        elif kind == GOAWAY:
            self.usable = False
        elif kind == RST_STREAM and stream == self._stream and not self._ended:
            # After an answer, this reset only says that the rest of the request is not wanted.
            number = int.from_bytes(payload, "big")
            code = RESETS.get(number, StatusCode.INTERNAL)
            raise failed(code, f"Triton ended the call: RST_STREAM with error code {number}")

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._untold += len(payload)
        if self._untold > WINDOW_UPDATE_BYTES:
            self._send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._untold)))
            self._untold = 0
        if self._is_for_current_answer(stream):
            self._parts.append(_without_padding(payload) if flags & PADDED else payload)
            self._ended = bool(flags & END_STREAM)

    def _is_for_current_answer(self, stream: int) -> bool:
        """True if a frame belongs to the current answer. After the answer's end, the connection is not used
        again.
        """
        if stream == self._stream and self._ended:
            self.usable = False
        return stream == self._stream and not self._ended

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not self._is_for_current_answer(stream):
            return
        if not flags & END_HEADERS:
            raise Unreadable("its headers have more than one frame")
        if flags & PADDED:
            payload = _without_padding(payload)
        try:
            headers = fields(payload[5:] if flags & PRIORITY else payload)
        except (ValueError, IndexError) as error:
            raise Unreadable(f"its headers have {error}") from None
        self._status = headers.get(b"grpc-status", self._status)
        self._message = headers.get(b"grpc-message", self._message)
        self._ended = bool(flags & END_STREAM)


def _has_room(settings: bytes) -> bool:
    """True if the server takes another call after a SETTINGS frame.

    A call that was sent before the frame arrived is valid, so the next one goes to a new connection.
    """
    values: dict[int, int] = dict(struct.iter_unpack(">HI", settings[: len(settings) // 6 * 6]))
    return (
        values.get(INITIAL_WINDOW_SIZE, DEFAULT_WINDOW_BYTES) >= MAX_FRAME_BYTES + 5
        and values.get(MAX_CONCURRENT_STREAMS, 1) > 0
    )


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Unreadable("a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


class ConnectionPool:
    """Connections to a server for one method. Any number of threads may call at once."""

    def __init__(self, port: int, path: str, metadata: Mapping[str, str]) -> None:
        self._port = port
        self._head = head(path, f"127.0.0.1:{port}", metadata)
        #: The last used is taken first: its memory is still cached.
        self._idle: list[Connection] = []

    def with_metadata(self, metadata: Mapping[str, str]) -> ConnectionPool:
        """Return a pool of the same connections whose calls carry more metadata."""
        other = copy.copy(self)
        other._head += b"".join(b"\x00" + literal(name) + literal(value) for name, value in metadata.items())
        return other

    def acquire(self, message: bytes, seconds: float) -> Connection:
        """Take a connection and send ``message`` on it. Raises :class:`Failed` if that is impossible."""
        connection = self._take() or Connection(self._port, seconds)
        try:
            connection.send(self._head, message, seconds)
        except BaseException:
            connection.close()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Give back a connection whose answer was read."""
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
