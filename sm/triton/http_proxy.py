"""Pass requests on to Triton's HTTP port unchanged, and its replies back.

The protocol is h11's; the sockets are ours, so that a wait for Triton ends with the invocation's time,
or when its caller hangs up. Closing the connection is how Triton is told: it cancels a stream then.
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

#: Milliseconds until the caller is looked after for the first time, and then each time.
FIRST_LOOK, NEXT_LOOK = 50, 100
#: Bytes asked of the kernel at a time.
CHUNK = 2**18
#: Statuses without a body: whatever follows one would be read as the answer to the next request.
NO_BODY = {204, 304}
#: Of one connection, not of what travels on it (RFC 9110, section 7.6.1).
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
#: Bytes, unless the box is told otherwise.
MAX_BODY_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Request:
    """What Triton is asked. ``target`` is the path with its query, percent-encoded as the caller had it."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Reply:
    """What Triton answered. Header names are in lower case; the body is an iterator where it is a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes]


class Upstream:
    """Triton's HTTP on loopback, for the threads of one process. ``timeout`` holds where no deadline does.

    ``largest``: bytes of a body, once it is unpacked. ``guard``: refuses answers that may be another's.
    """

    def __init__(
        self, port: int, timeout: float, largest: int = MAX_BODY_BYTES, guard: AnswerGuard | None = None
    ) -> None:
        self._port, self._timeout, self._largest = port, timeout, largest
        self._guard = guard or AnswerGuard(None)
        self._idle: deque[Connection] = deque()

    def send(self, request: Request) -> Reply:
        """Triton's reply, whatever its status. :class:`NotReady` if there is none that can be trusted."""
        deadline = current() or Deadline(time.monotonic() + self._timeout)
        deadline.check()
        unsafe_json.check(request.body, request.headers or {}, self._largest)
        generation = self._guard.admit()
        connection = self._connection()
        try:
            with _explained():
                reply = connection.exchange(request, deadline)
                if reply.status == 200 and reply.headers.get("content-type", "").startswith(STREAM):
                    return replace(reply, body=self._trusted(connection.parts(deadline), generation))
                body = b"".join(connection.data(deadline))
                whole = replace(reply, body=body)
        except BaseException:
            connection.close()
            raise
        if connection.reset():
            self._idle.append(connection)
        self._check(body, generation)
        return whole

    def _trusted(self, parts: Generator[bytes, None, None], generation: int) -> Iterator[bytes]:
        """The parts of a stream, up to one that may be another request's. Raises :class:`NotReady` there."""
        with contextlib.closing(parts):
            for part in parts:
                self._check(part, generation)
                yield part

    def _check(self, body: bytes, generation: int) -> None:
        """Raises :class:`NotReady` if ``body`` may be the answer to another request."""
        instance = stalled_instance(failure_text(body))
        if instance is not None:
            self._guard.report_stall(generation, instance)
        self._guard.confirm(generation)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> Connection:
        """One that is open still; a new one if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()
        with _explained():
            return Connection(self._port)


class Connection:
    """One connection, one exchange at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._protocol = h11.Connection(h11.CLIENT)
        #: False once an answer came whose end cannot be told from bytes behind it.
        self._reusable = True

    def usable(self) -> bool:
        """An idle connection has nothing to say, except that its other end is gone."""
        return not self._poll.poll(0)

    def exchange(self, request: Request, deadline: Deadline) -> Reply:
        """Send all of ``request``; the head of the reply, its body still to come."""
        headers = {**(request.headers or {}), "host": "127.0.0.1", "content-length": str(len(request.body))}
        self._socket.settimeout(max(0.001, deadline.remaining()))
        # WSGI's strings hold a byte in each character.
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
        said = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        return Reply(event.status_code, {k: v for k, v in said if k not in HOP_BY_HOP}, b"")

    def data(self, deadline: Deadline) -> Iterator[bytes]:
        """The body's pieces as they arrive."""
        while isinstance(event := self._next(deadline), h11.Data):
            yield bytes(event.data)

    def parts(self, deadline: Deadline) -> Generator[bytes, None, None]:
        """The body's pieces; the connection ends with the iterator, read to its end or not."""
        try:
            with _explained():
                yield from self.data(deadline)
        finally:
            self.close()

    def reset(self) -> bool:
        """Make ready for the next exchange; False, and closed, if that could read what is left of this one.

        Triton's 405 to HEAD, for example, has a body.
        """
        done = (self._protocol.our_state, self._protocol.their_state) == (h11.DONE, h11.DONE)
        if not done or not self._reusable or self._protocol.trailing_data != (b"", False):
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
            self._protocol.receive_data(self._socket.recv(CHUNK))
            event = self._protocol.next_event()
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError
        return event

    def _wait(self, deadline: Deadline) -> None:
        patience = FIRST_LOOK
        while not self._poll.poll(min(patience, 1 + deadline.remaining() * 1000)):
            deadline.check()
            patience = NEXT_LOOK


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What a broken exchange means for the caller."""
    try:
        yield
    except TimeoutError as error:
        raise DeadlinePassed("the invocation's time ended before Triton had the request") from error
    except h11.LocalProtocolError as error:
        raise BadInput(f"a header cannot be passed on: {error}") from error
    except (OSError, h11.RemoteProtocolError) as error:
        raise NotReady(UNREACHABLE) from error


def failure_text(body: bytes) -> str:
    """What Triton says went wrong, in a body or in an event; nothing for an answer."""
    text = body.removeprefix(b"data: ")
    if not text.startswith(b'{"error":'):
        return ""
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    return str(said["error"])


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """A caller's headers that are meant for Triton: lower-case names, no connection's, none of ours."""
    return {
        name: value
        for name, value in headers.items()
        if name not in HOP_BY_HOP and not name.startswith("x-trireme-")
    }
