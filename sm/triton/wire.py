"""One unary gRPC call at a time on a connection of its own: plain sockets, and of HTTP/2 what that takes.

gRPC's Python client spends five times as long on a call as this does: it hands each from thread to thread.
Here the thread that asks also waits. HTTP/2: RFC 9113, its header blocks: RFC 7541; gRPC over them:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from grpc import StatusCode

from sm.triton.failures import Failed, failed

#: Bytes of a message that go into one frame, whatever the other side's settings.
LONGEST = 2**14 - 5
#: Types and flags of frames.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
#: A window as wide as can be, and the one that everybody begins with.
WIDEST, FIRST_WINDOW = 2**31 - 1, 2**16 - 1
#: Milliseconds.
GRACE = 20
#: Of received data that nobody told the other side that there is room for again.
MOST_UNTOLD = 2**30
LAST_STREAM = 2**31 - 1
CODES = {code.value[0]: code for code in StatusCode}


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


def head(path: str, authority: str, metadata: Mapping[str, str]) -> bytes:
    """The header block of a call but for its time: POST, http, and what follows as literals."""
    named = {"te": "trailers", **metadata}
    return b"".join(
        (
            # Entries of RFC 7541's table: 3 and 6 whole, of 4, 1 and 31 the name.
            b"\x83\x86\x04" + _text(path),
            b"\x01" + _text(authority),
            b"\x0f\x10" + _text("application/grpc"),
            *(b"\x00" + _text(name) + _text(value) for name, value in named.items()),
        )
    )


def _text(text: str) -> bytes:
    content = text.encode()
    return _number(len(content), 7) + content


def _number(value: int, bits: int) -> bytes:
    """RFC 7541's integers, the bits before them 0."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    coded, value = [most], value - most
    while value >= 128:
        coded.append(value & 127 | 128)
        value >>= 7
    return bytes((*coded, value))


@lru_cache(maxsize=64)  # most blocks say the same
def fields(block: bytes) -> Mapping[bytes, bytes]:
    """The headers whose names stand in a block that refers to no table but the fixed one, as was asked for.

    ValueError or IndexError for what this cannot read.
    """
    return dict(Block(block).named())


class Block:
    """A header block, read from its start."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    def named(self) -> Iterator[tuple[bytes, bytes]]:
        while self._at < len(self._block):
            first = self._block[self._at]
            if first & 0x80:  # a header of the fixed table
                self._integer(7)
            elif first & 0xE0 == 0x20:  # the size of the table that there is none of
                self._integer(5)
            else:
                index = self._integer(6 if first & 0x40 else 4)
                yield b"" if index else self._string(), self._string()

    def _integer(self, bits: int) -> int:
        most = (1 << bits) - 1
        value, shift = self._block[self._at] & most, 0
        self._at += 1
        if value < most:
            return value
        while True:
            byte = self._block[self._at]
            self._at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _string(self) -> bytes:
        coded = self._block[self._at] & 0x80
        size = self._integer(7)
        text = self._block[self._at : self._at + size]
        self._at += size
        if coded:
            raise ValueError("a string in Huffman's code")
        return text


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
            return self.usable and self._window >= LONGEST + 5 and self._stream < LAST_STREAM
        except (OSError, Failed):
            return False

    def ask(self, head: bytes, message: bytes, seconds: float) -> None:
        """Send a call. The server is told of a little more time: its end is for this side to say."""
        self._stream += 2
        self._status, self._said, self._parts, self._ended = b"", b"", [], False
        block = head + b"\x00" + _text("grpc-timeout") + _text(f"{int(seconds * 1000) + GRACE}m")
        self._window -= len(message) + 5
        self._send(
            frame(HEADERS, END_HEADERS, self._stream, block)
            + frame(DATA, END_STREAM, self._stream, b"\0" + struct.pack(">I", len(message)) + message)
        )

    def answer(self, seconds: float) -> bytes | None:
        """The answer's message; None if it is not there by then. :class:`Failed` for any other status."""
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
        if self._status != b"0":
            code = CODES.get(int(self._status or 2), StatusCode.UNKNOWN)
            raise failed(code, unquote_to_bytes(self._said).decode(errors="replace"))
        # Not kept until the next call: it may be megabytes.
        parts, self._parts = self._parts, []
        return b"".join(parts)[5:]

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
            self._window += struct.unpack(">I", payload)[0]
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._send(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == GOAWAY:
            self.usable = False
        elif kind == RST_STREAM and stream == self._stream:
            raise failed(StatusCode.UNAVAILABLE, "the call was ended")

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._untold += len(payload)
        if self._untold > MOST_UNTOLD:
            self._send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._untold)))
            self._untold = 0
        if stream == self._stream:
            self._parts.append(payload[1 : len(payload) - payload[0]] if flags & PADDED else payload)
            self._ended = bool(flags & END_STREAM)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if stream != self._stream:
            return
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        try:
            said = fields(payload[5:] if flags & PRIORITY else payload)
        except (ValueError, IndexError):
            raise failed(StatusCode.INTERNAL, "Triton's headers cannot be read") from None
        self._status = said.get(b"grpc-status", self._status)
        self._said = said.get(b"grpc-message", self._said)
        self._ended = bool(flags & END_STREAM)


def _opened(buffer: bytes, at: int) -> tuple[int, int, int, int]:
    """Size, type, flags and stream of the frame that begins there."""
    first, low, kind, flags, stream = struct.unpack_from(">HBBBI", buffer, at)
    return first << 8 | low, kind, flags, stream & LAST_STREAM


class Line:
    """Connections to a server for one method; any number of threads may call at once."""

    def __init__(self, port: int, path: str, metadata: Mapping[str, str]) -> None:
        self._port = port
        self._head = head(path, f"127.0.0.1:{port}", metadata)
        #: The last used is the next: its memory is warm.
        self._idle: list[Connection] = []

    def lend(self, message: bytes, seconds: float) -> Connection:
        """A connection on which ``message`` is asked; :class:`Failed` if it cannot be."""
        connection = self._taken() or Connection(self._port, seconds)
        try:
            connection.ask(self._head, message, seconds)
        except BaseException:
            connection.close()
            raise
        return connection

    def take_back(self, connection: Connection) -> None:
        """It has had its answer."""
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _taken(self) -> Connection | None:
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if connection.fresh():
                    return connection
                connection.close()
        return None
