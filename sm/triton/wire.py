"""A unary gRPC client on plain sockets: one call at a time on each connection.

gRPC's Python client takes five times as long for a call, because it hands each call from thread to thread.
Here the calling thread also waits. It sends a message as the server's flow control has room for it, and reads
meanwhile: the server may end the call before it has the whole message.

HTTP/2: RFC 9113, its header blocks (HPACK): RFC 7541; gRPC over it:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Headers are read in the forms that gRPC's
servers use; any other form is :class:`Unreadable`, and the call fails.

When Triton's HTTP notices a caller that leaves (triton-inference-server/server, pull request 8982),
:mod:`sm.triton.http_proxy` can take its place.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from grpc import StatusCode

from sm.errors import NotReady, Unavailable
from sm.triton.triton_errors import ENDING, UNREACHABLE, Failed, lost_connection, translate_status

#: Bytes of a frame at most. Every server accepts as many, so its MAX_FRAME_SIZE is not read.
FRAME_BYTES = 2**14
#: Bytes of the frames that are made at once.
BURST_BYTES = 2**18
#: Types and flags of frames.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
#: The head of a frame: its size (two bytes, then the low one), type, flags, stream.
FRAME_HEAD = struct.Struct(">HBBBI")
#: Identifiers of HTTP/2's settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
#: The largest flow-control window, and the default one.
MAX_WINDOW_BYTES, DEFAULT_WINDOW_BYTES = 2**31 - 1, 2**16 - 1
#: Send WINDOW_UPDATE after this many received bytes.
WINDOW_UPDATE_BYTES = 2**30
#: Bytes of one read, and of the largest frame that the server may send. An incomplete frame is copied with
#: each read.
READ_BYTES = 2**18
MAX_STREAM_ID = 2**31 - 1
#: The kernel takes 0 for a wait without an end.
MIN_WAIT_S = 0.001
#: The server's deadline is this much later, so that this side ends the call first.
DEADLINE_GRACE_MS = 20
#: The number of a status, as gRPC's servers write it.
STATUS = re.compile(rb"[0-9]{1,3}")
CODES = {code.value[0]: code for code in StatusCode}
#: gRPC statuses for the error codes of RST_STREAM; others are INTERNAL.
RESET_CODES = {
    7: StatusCode.UNAVAILABLE,
    8: StatusCode.CANCELLED,
    11: StatusCode.RESOURCE_EXHAUSTED,
    12: StatusCode.PERMISSION_DENIED,
}
#: Entries of HPACK's static table.
STATIC_TABLE_ENTRIES = 61


class Unreadable(Exception):
    """An answer in a form that is not supported here. The server has finished the call."""


def encode_string(text: str) -> bytes:
    """Encode a string literal of a header block, without Huffman coding."""
    content = text.encode()
    size = len(content)
    if size < 127:
        return bytes((size,)) + content
    encoded, size = [127], size - 127  # RFC 7541, section 5.1
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    return bytes((*encoded, size)) + content


def encode_literals(headers: Mapping[str, str]) -> bytes:
    return b"".join(b"\x00" + encode_string(name) + encode_string(value) for name, value in headers.items())


def encode_call_headers(path: str, authority: str, metadata: Mapping[str, str]) -> bytes:
    """Encode the headers of a call, except its time-out."""
    # Static table: entries 3 (POST) and 6 (http) with their values; 4 (:path), 1 (:authority) and 31
    # (content-type) for the name only.
    return b"".join(
        (
            b"\x83\x86\x04" + encode_string(path),
            b"\x01" + encode_string(authority),
            b"\x0f\x10" + encode_string("application/grpc"),
            encode_literals({"te": "trailers", **metadata}),
        )
    )


#: The name of the header with the time-out, as a literal.
TIMEOUT_NAME = b"\x00" + encode_string("grpc-timeout")


@lru_cache(maxsize=64)  # Most answers have the same headers.
def decode_headers(block: bytes) -> Mapping[bytes, bytes]:
    """Decode a header block. It refers only to the static table, because SETTINGS turned the dynamic one off.

    Raises:
        ValueError: The block has another form.
        IndexError: The block is truncated.
    """
    return dict(_headers(block))


def _headers(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # An entry of the static table: none of them matters here.
            _, at = _decode_index(block, at, 7)
        elif first & 0xE0 == 0x20:  # A new size of the dynamic table, which is off.
            _, at = _decode_integer(block, at, 5)
        else:  # A literal, whose name may be an entry of the static table.
            index, at = _decode_index(block, at, 6 if first & 0x40 else 4)
            name, at = (b"", at) if index else _decode_string(block, at)
            value, at = _decode_string(block, at)
            yield name, value


def _decode_index(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Decode an index; return it, and where the next field begins."""
    index, at = _decode_integer(block, at, bits)
    if index > STATIC_TABLE_ENTRIES:
        raise ValueError("an entry of the dynamic table")
    return index, at


def _decode_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    prefix_max = (1 << bits) - 1
    value, shift = block[at] & prefix_max, 0
    at += 1
    if value < prefix_max:
        return value, at
    while True:
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _decode_string(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    size, at = _decode_integer(block, at, 7)
    text = block[at : at + size]
    if len(text) < size:
        raise ValueError("a string without its end")
    if is_huffman:
        raise ValueError("a string in Huffman's code")
    return text, at + size


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    """Encode a frame."""
    size = len(payload)
    return b"".join((FRAME_HEAD.pack(size >> 8, size & 255, kind, flags, stream), payload))


def preface(window: int = MAX_WINDOW_BYTES) -> bytes:
    """Return the first bytes of a connection.

    Args:
        window: Bytes that the server may send before it waits for WINDOW_UPDATE.
    """
    settings = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: window, MAX_FRAME_SIZE: READ_BYTES}
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings.items()))
        + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window - DEFAULT_WINDOW_BYTES))
    )


PREFACE = preface()


class GrpcConnection:
    """A connection to a server on loopback, for one thread at a time. Close it after an exception.

    Args:
        port: Of the server.
        seconds: To connect.

    Raises:
        Failed: The server is not there.
    """

    def __init__(self, port: int, seconds: float) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), max(MIN_WAIT_S, seconds))
        except OSError:
            raise Failed(NotReady, UNREACHABLE, finished=True) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel applies the time-out. With Python's own, each read would be two system calls.
        self._socket.settimeout(None)
        self._receive_timeout = 0.0
        self._stream = -1
        #: Received bytes that were not parsed yet.
        self._buffer = b""
        #: Bytes that the server takes now, on the connection and on the call's stream. The latter begins with
        #: the third, and is negative after the server has made that smaller.
        self._window = self._stream_window = self._initial_window = DEFAULT_WINDOW_BYTES
        #: Bytes of the call that wait for the server's windows, and frames that wait for the socket.
        self._unsent: list[memoryview] = []
        self._outgoing = b""
        #: Received bytes that were not yet acknowledged with WINDOW_UPDATE.
        self._unacknowledged = 0
        self._status = b""
        self._message = b""
        self._parts: list[bytes] = []
        self._ended = False
        self.usable = True
        self._send(PREFACE)

    def is_ready(self) -> bool:
        """True if the connection can take a call: the server has not closed it, nor announced to do so."""
        try:
            while content := self._socket.recv(2**16, socket.MSG_DONTWAIT):
                self._parse_frames(content)
            return False
        except BlockingIOError:
            # With half a frame in the buffer, the next answer would be parsed from its middle. Of a call that
            # was answered too soon, half a frame may have been sent.
            is_between_frames = not (self._buffer or self._outgoing or self._unsent)
            return self.usable and is_between_frames and self._stream < MAX_STREAM_ID
        except (OSError, Failed, Unreadable):
            return False

    def send(self, head: bytes, message: bytes, seconds: float) -> None:
        """Send a call. The server gets a slightly longer deadline, so that this side ends the call."""
        self._stream += 2
        self._status, self._message, self._ended = b"", b"", False
        timeout = b"%dm" % (int(seconds * 1000) + DEADLINE_GRACE_MS)
        block = b"%b%b%c%b" % (head, TIMEOUT_NAME, len(timeout), timeout)
        size, stream = len(message) + 5, self._stream
        call = FRAME_HEAD.pack(len(block) >> 8, len(block) & 255, HEADERS, END_HEADERS, stream) + block
        if size <= FRAME_BYTES and size <= self._window and size <= self._initial_window:
            self._window -= size
            call = b"%b%b\0%b%b" % (
                call,
                FRAME_HEAD.pack(size >> 8, size & 255, DATA, END_STREAM, stream),
                (size - 5).to_bytes(4, "big"),
                message,
            )
        else:
            self._stream_window = self._initial_window
            parts = b"\0" + (size - 5).to_bytes(4, "big"), message
            self._unsent = [memoryview(part) for part in parts if part]
        try:
            sent = self._socket.send(call, socket.MSG_DONTWAIT)
        except OSError:
            sent = 0
        if sent < len(call) or self._unsent:
            self._outgoing = call[sent:]
            self._push()

    def receive(self, seconds: float) -> bytes | None:
        """Return the answer's message; None if it did not arrive in time.

        Raises:
            Failed: The server answered with an error status, or the connection ended.
            Unreadable: The answer's form is not supported.
        """
        if seconds < MIN_WAIT_S:
            seconds = MIN_WAIT_S
        if seconds != self._receive_timeout:
            interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
            self._receive_timeout = seconds
        end = 0.0
        while True:
            if not self._outgoing or self._can_read(seconds):
                try:
                    content = self._socket.recv(READ_BYTES)
                except BlockingIOError:
                    return None
                except OSError:
                    content = b""
                if not content:
                    raise lost_connection()
                self._parse_frames(content)
                if self._ended:
                    break
                if self._unsent:
                    self._push()
            now = time.monotonic()
            end = end or now + seconds
            if now > end:
                return None
        # Drop the parts now, as they may be megabytes.
        parts, self._parts = self._parts, []
        message = b"".join(parts)
        is_complete = message[:1] == b"\0" and int.from_bytes(message[1:5], "big") == len(message) - 5
        if self._status == b"0" and is_complete:
            return message[5:]
        if self._status == b"0" or not STATUS.fullmatch(self._status):
            raise Unreadable("the answer is not one uncompressed message, or has no status")
        code = CODES.get(int(self._status), StatusCode.UNKNOWN)
        raise translate_status(code, unquote_to_bytes(self._message).decode(errors="replace"))

    def close(self) -> None:
        """Close the connection. The server drops its call."""
        self._socket.close()

    def _send(self, content: bytes) -> None:
        self._outgoing += content
        self._push()

    def _push(self) -> None:
        """Send what the socket and the server's windows have room for."""
        while self._outgoing or (self._unsent and self._make_frames()):
            try:
                sent = self._socket.send(self._outgoing, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                # The server may have answered before it closed the connection: reading shows it.
                self._outgoing, self._unsent, self.usable = b"", [], False
                return
            self._outgoing = self._outgoing[sent:]

    def _make_frames(self) -> bool:
        """Make frames of what the server's windows have room for; False if they have none."""
        room = min(self._window, self._stream_window, BURST_BYTES)
        if room <= 0:
            return False
        content, rest = self._unsent[0][:room], self._unsent[0][room:]
        self._unsent[:1] = [rest] if rest else []
        self._window -= len(content)
        self._stream_window -= len(content)
        parts = [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)]
        last = b"" if self._unsent else frame(DATA, END_STREAM, self._stream, parts.pop())
        self._outgoing = b"".join(frame(DATA, 0, self._stream, part) for part in parts) + last
        return True

    def _can_read(self, seconds: float) -> bool:
        """Wait until something can be read, or until the socket has room, and use that room."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        ((_, events),) = poll.poll(seconds * 1000) or ((0, 0),)
        if events & select.POLLOUT:
            self._push()
        return bool(events & ~select.POLLOUT)

    def _parse_frames(self, content: bytes) -> None:
        """Handle all complete frames, and keep the rest."""
        buffer = self._buffer + content if self._buffer else content
        at = 0
        size = len(buffer)
        while at + 9 <= size:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(buffer, at)
            end = at + 9 + (high << 8 | low)
            if end > size:
                break
            # A reserved bit before the stream's number is ignored.
            stream, payload = stream & MAX_STREAM_ID, buffer[at + 9 : end]
            at = end
            if kind == DATA:
                self._data(flags, stream, payload)
            elif kind == HEADERS:
                self._headers(flags, stream, payload)
            elif kind == WINDOW_UPDATE:
                if stream == 0:
                    self._window += int.from_bytes(payload, "big")
                elif stream == self._stream:
                    self._stream_window += int.from_bytes(payload, "big")
            else:
                self._handle_frame(kind, flags, stream, payload)
        self._buffer = buffer[at:]

    def _handle_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            if kind == SETTINGS:
                self._apply_settings(payload)
            # Frames after the acknowledgement must keep to the new settings.
            self._send(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == GOAWAY:
            self.usable = False
            last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
            if last < self._stream and not self._ended:
                raise Failed(NotReady, UNREACHABLE, finished=True)
        elif kind == RST_STREAM and stream == self._stream and not self._ended:
            # After the answer's end, a reset only means that the server ignores the rest of the request.
            number = int.from_bytes(payload, "big")
            code = RESET_CODES.get(number, StatusCode.INTERNAL)
            raise lost_connection(code, f"Triton ended the call: RST_STREAM with error code {number}")

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]):
            if name == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif name == MAX_CONCURRENT_STREAMS and not value:
                # A call that was sent before is valid; the next one needs a new connection.
                self.usable = False

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._unacknowledged += len(payload)
        if self._unacknowledged > WINDOW_UPDATE_BYTES:
            self._send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged)))
            self._unacknowledged = 0
        if stream != self._stream:
            return
        if self._ended:
            self.usable = False
        else:
            self._parts.append(_without_padding(payload) if flags & PADDED else payload)
            self._ended = bool(flags & END_STREAM)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if stream != self._stream:
            return
        if self._ended:
            self.usable = False
            return
        if not flags & END_HEADERS:
            raise Unreadable("its headers have more than one frame")
        if flags & PADDED:
            payload = _without_padding(payload)
        try:
            headers = decode_headers(payload[5:] if flags & PRIORITY else payload)
        except (ValueError, IndexError) as error:
            raise Unreadable(f"its headers have {error}") from None
        self._status = headers.get(b"grpc-status", self._status)
        self._message = headers.get(b"grpc-message", self._message)
        self._ended = bool(flags & END_STREAM)


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Unreadable("a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


class ConnectionPool:
    """Connections to a server on loopback. Any number of threads may call at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: The last used is taken first, because its memory is still cached.
        self._idle: list[GrpcConnection] = []
        #: Gives back a connection whose answer was read.
        self.release = self._idle.append
        self._is_closed = False

    def acquire(self, seconds: float) -> GrpcConnection:
        """Take a connection, or make one within ``seconds``. Raises :class:`Failed` if that is impossible."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                if self._is_closed:
                    raise Failed(Unavailable, ENDING, finished=True) from None
                return GrpcConnection(self._port, seconds)
            if connection.is_ready():
                return connection
            connection.close()

    def close(self) -> None:
        """Close the connections, and make no more."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
