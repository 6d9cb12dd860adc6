"""A Triton that answers as a test says, over gRPC by ``h2``, which checks what callers send."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, PingAckReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes

READ_BYTES = 2**16
#: A server that waits for a caller which has nothing more to say gives up.
CALLER_TIMEOUT_S = 20.0
OPENING = [(":status", "200"), ("content-type", "application/grpc")]


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


def message(content: bytes, compressed: bool = False) -> bytes:
    """The content as one message of gRPC."""
    return struct.pack(">BI", compressed, len(content)) + content


@dataclass
class Call:
    """What a caller sent, and the means to answer it."""

    server: H2Caller
    stream: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    #: Bytes of the body for which the caller has not been given room again.
    unacknowledged: int = 0
    #: Set by a test that answers before the call is complete. Its script does not run then.
    is_answered: bool = False

    def open(self) -> None:
        self.server.h2.send_headers(self.stream, OPENING)

    def send(self, content: bytes, pad: int | None = None, frame_bytes: int = 2**14) -> None:
        """As DATA frames, as many bytes as the caller's windows have room for."""
        h2, rest = self.server.h2, memoryview(content)
        while rest:
            overhead = 0 if pad is None else pad + 1
            room = min(
                h2.local_flow_control_window(self.stream) - overhead,
                h2.max_outbound_frame_size - overhead,
                frame_bytes,
            )
            if room <= 0:
                self.server.flush()
                self.server.receive()
                continue
            h2.send_data(self.stream, bytes(rest[:room]), pad_length=pad)
            rest = rest[room:]
            self.server.flush()

    def give_room(self) -> None:
        """Let the caller send as many bytes again as came so far."""
        # h2's own way keeps a caller with a small window waiting for ever.
        h2, room, self.unacknowledged = self.server.h2, self.unacknowledged, 0
        if room:
            h2.increment_flow_control_window(room)
            with contextlib.suppress(StreamClosedError):  # the caller may have reset it since
                h2.increment_flow_control_window(room, self.stream)
        self.server.flush()

    def end(self, status: int = 0, sentence: str | None = None) -> None:
        """The trailers."""
        trailers = [("grpc-status", str(status))]
        if sentence is not None:
            trailers.append(("grpc-message", sentence))
        self.server.h2.send_headers(self.stream, trailers, end_stream=True)
        self.server.flush()

    def answer(self, content: bytes) -> None:
        """An ordinary answer."""
        self.open()
        self.send(message(content))
        self.end()


Script = Callable[[Call], None]
#: Called with a call that is not complete, whenever something of its caller has arrived.
Hearing = Callable[[Call], None]


@dataclass
class H2Caller:
    """A connection that somebody made to the server."""

    sock: socket.socket
    huffman: bool
    settings: dict[SettingCodes | int, int]
    hear: Hearing
    calls: dict[int, Call] = field(default_factory=dict)
    complete: list[Call] = field(default_factory=list)
    pongs: int = 0

    def __post_init__(self) -> None:
        self.sock.settimeout(CALLER_TIMEOUT_S)
        # Small frames at once, not after the acknowledgement of the last ones.
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        if not self.huffman:
            # gRPC's C core, which Triton uses, sends no Huffman code.
            encoder: Any = self.h2.encoder
            encoder.encode = partial(encoder.encode, huffman=False)
        self.h2.initiate_connection()
        self.h2.update_settings(self.settings)
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.h2.data_to_send())

    def receive(self) -> None:
        """Read what is there; EOFError when the caller has left."""
        content = self.sock.recv(READ_BYTES)
        if not content:
            raise EOFError
        for event in self.h2.receive_data(content):
            if isinstance(event, RequestReceived):
                self.calls[event.stream_id] = Call(
                    self, event.stream_id, [(str(name), str(value)) for name, value in event.headers]
                )
            elif isinstance(event, DataReceived):
                call = self.calls[event.stream_id]
                call.body += event.data
                call.unacknowledged += event.flow_controlled_length
            elif isinstance(event, PingAckReceived):
                self.pongs += 1
            elif isinstance(event, StreamEnded):
                call = self.calls.pop(event.stream_id)
                call.give_room()
                if not call.is_answered:
                    self.complete.append(call)
            elif isinstance(event, StreamReset):
                self.calls.pop(event.stream_id, None)
                self.complete = [call for call in self.complete if call.stream != event.stream_id]
        for call in [*self.calls.values()]:
            self.hear(call)
        self.flush()

    def next_call(self) -> Call:
        while not self.complete:
            self.receive()
        return self.complete.pop(0)


@dataclass
class H2Server:
    """What was asked of the server, and what of it was not HTTP/2."""

    port: int = 0
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    errors: list[ProtocolError] = field(default_factory=list)


@contextmanager
def h2_server(
    script: Script,
    *,
    huffman: bool = False,
    settings: dict[SettingCodes | int, int] | None = None,
    hear: Hearing = Call.give_room,
) -> Iterator[H2Server]:
    """Run ``script`` for every call until the block ends; a breach of HTTP/2 by a caller fails the test."""
    served = H2Server()

    def serve(connection: socket.socket) -> None:
        served.connections += 1
        try:
            caller = H2Caller(connection, huffman, settings or {}, hear)
            while True:
                call = caller.next_call()
                served.calls.append(call)
                script(call)
                caller.flush()
        except ProtocolError as error:
            served.errors.append(error)
        except EOFError:
            pass  # the caller has ended the connection

    with socket_server(serve) as served.port:
        yield served
    assert not served.errors, served.errors
