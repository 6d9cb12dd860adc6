"""Pass requests on to Triton's HTTP port unchanged, and its replies back.

h11 does the protocol; the sockets are our own, so that a wait for Triton ends at the invocation's deadline,
or when its caller disconnects. Closing the connection makes Triton cancel a stream.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

import h11
import orjson

from sm.deadline import Deadline, current
from sm.errors import BadInput, DeadlinePassed, NotReady
from sm.triton import unsafe_json
from sm.triton.answer_guard import AnswerGuard
from sm.triton.call_failures import UNREACHABLE, stalled_instance

#: Milliseconds until the first check for a disconnected caller, and between the next ones.
FIRST_CHECK_MS, CHECK_INTERVAL_MS = 50, 100
#: Bytes of one read.
READ_BYTES = 2**18
#: Statuses without a body: bytes after one would be read as the answer to the next request.
NO_BODY = {204, 304}
#: Headers of one connection (RFC 9110, section 7.6.1).
HOP_BY_HOP = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
STREAM = "text/event-stream"
#: The default limit in bytes.
MAX_BODY_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Request:
    """A request for Triton. ``target`` is path and query, percent-encoded as the caller sent them."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Reply:
    """Triton's reply. Header names are in lower case; the body of a stream is an iterator."""

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes]


class Upstream:
    """Triton's HTTP port on loopback, for the threads of one process. ``timeout`` holds without a deadline.

    ``largest``: bytes of a body after decompression. ``guard``: refuses answers that may be another
    request's.
    """

    def __init__(
        self, port: int, timeout: float, largest: int = MAX_BODY_BYTES, guard: AnswerGuard | None = None
    ) -> None:
        self._port, self._timeout, self._largest = port, timeout, largest
        self._guard = guard or AnswerGuard(None)
        self._idle: deque[Connection] = deque()

    def send(self, request: Request) -> Reply:
        """Send a request; return Triton's reply, whatever its status. Raises :class:`NotReady` if no reply
        can be trusted.
        """
        deadline = current() or Deadline(time.monotonic() + self._timeout)
        deadline.check()
        unsafe_json.check(request.body, request.headers or {}, self._largest)
        generation = self._guard.admit()
        connection = self._connection()
        try:
            with _errors_for_caller():
                reply = connection.exchange(request, deadline)
                if reply.status == 200 and reply.headers.get("content-type", "").startswith(STREAM):
                    return replace(reply, body=self._check_instance(connection.parts(deadline), generation))
                body = b"".join(connection.data(deadline))
                complete = replace(reply, body=body)
        except BaseException:
            connection.close()
            raise
        if connection.reset():
            self._idle.append(connection)
        self._check(body, generation)
        return complete

    def _check_instance(self, parts: Generator[bytes, None, None], generation: int) -> Iterator[bytes]:
        """Yield a stream's parts. Raises :class:`NotReady` at the first that may belong to another
        request.
        """
        with contextlib.closing(parts):
            for part in parts:
                self._check(part, generation)
                yield part

    def _check(self, body: bytes, generation: int) -> None:
        """Raise :class:`NotReady` if ``body`` may be the answer to another request."""
        instance = stalled_instance(failure_text(body))
        if instance is not None:
            self._guard.report_stall(generation, instance)
        self._guard.confirm(generation)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> Connection:
        """Return an idle connection, or open one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()
        with _errors_for_caller():
            return Connection(self._port)


class Connection:
    """A connection that does one exchange at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._protocol = h11.Connection(h11.CLIENT)
        #: Set to False by an answer whose end cannot be told from the bytes after it.
        self._reusable = True

    def usable(self) -> bool:
        """True if the connection is open. An idle one is readable only when the other side has closed it."""
        return not self._poll.poll(0)

    def exchange(self, request: Request, deadline: Deadline) -> Reply:
        """Send all of ``request``; return the head of the reply, before its body is read."""
        headers = {**(request.headers or {}), "host": "127.0.0.1", "content-length": str(len(request.body))}
        self._socket.settimeout(max(0.001, deadline.remaining()))
        # Strings of WSGI hold one byte in each character.
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        head = h11.Request(method=request.method, target=request.target.encode("latin-1"), headers=encoded)
        for piece in (head, h11.Data(data=request.body), h11.EndOfMessage()):
            for data in self._protocol.send_with_data_passthrough(piece) or ():
                self._socket.sendall(data)
        event = self._next(deadline)
        while isinstance(event, h11.InformationalResponse):
            event = self._next(deadline)
        assert isinstance(event, h11.Response)
        self._reusable = request.method != "HEAD" and event.status_code not in NO_BODY
        fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        return Reply(event.status_code, {k: v for k, v in fields if k not in HOP_BY_HOP}, b"")

    def data(self, deadline: Deadline) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive."""
        while isinstance(event := self._next(deadline), h11.Data):
            yield bytes(event.data)

    def parts(self, deadline: Deadline) -> Generator[bytes, None, None]:
        """Yield the body in pieces; closing the iterator closes the connection."""
        try:
            with _errors_for_caller():
                yield from self.data(deadline)
        finally:
            self.close()

    def reset(self) -> bool:
        """Prepare for the next exchange. Returns False, and closes, if bytes of this one could be left.

        Triton's 405 for HEAD, for example, has a body.
        """
        finished = (self._protocol.our_state, self._protocol.their_state) == (h11.DONE, h11.DONE)
        if not finished or not self._reusable or self._protocol.trailing_data != (b"", False):
            self.close()
            return False
        self._protocol.start_next_cycle()
        return True

    def close(self) -> None:
        self._socket.close()

    def _next(self, deadline: Deadline) -> h11.Event:
        event = self._protocol.next_event()
        while event is h11.NEED_DATA:
            self._wait(deadline)
            self._protocol.receive_data(self._socket.recv(READ_BYTES))
            event = self._protocol.next_event()
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError
        return event

    def _wait(self, deadline: Deadline) -> None:
        patience = FIRST_CHECK_MS
        while not self._poll.poll(min(patience, 1 + deadline.remaining() * 1000)):
            deadline.check()
            patience = CHECK_INTERVAL_MS


@contextlib.contextmanager
def _errors_for_caller() -> Iterator[None]:
    """Translate a broken exchange into the caller's error."""
    try:
        yield
    except TimeoutError as error:
        raise DeadlinePassed("the invocation's time ended before Triton had the request") from error
    except h11.LocalProtocolError as error:
        raise BadInput(f"a header cannot be passed on: {error}") from error
    except (OSError, h11.RemoteProtocolError) as error:
        raise NotReady(UNREACHABLE) from error


def failure_text(body: bytes) -> str:
    """Return Triton's error text in a body or an event; empty for an answer."""
    text = body.removeprefix(b"data: ")
    if not text.startswith(b'{"error":'):
        return ""
    try:
        decoded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    return str(decoded["error"])


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a caller's headers for Triton: names in lower case, without hop-by-hop headers and our own."""
    return {
        name: value
        for name, value in headers.items()
        if name not in HOP_BY_HOP and not name.startswith("x-trireme-")
    }
