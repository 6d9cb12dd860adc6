"""``/invocations-bidirectional-stream``: a WebSocket (RFC 6455) on which each message is an invocation.

The 101 is sent like any response; then the request's thread serves the connection, on the worker's own
socket. wsproto implements the protocol.
"""

from __future__ import annotations

import contextvars
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, request
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.events import Message as MessagePart
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from sm.errors import BadInput, CallerGone, Forbidden, Overloaded, TriremeError
from sm.http.control_paths import MAX_NEEDLESS_BODY_BYTES
from sm.http.messages import JSON, Answer, write_error
from sm.polling import WATCH_S
from sm.router.answers import dumps
from sm.router.back_pressure import finishing
from sm.router.forms.session import CLOSED_SESSION_ID, NEW_SESSION_ID, SESSION_ID
from sm.router.invocation_routes import Router
from sm.router.request_types import SESSION_HEADER, Message
from sm.router.wsgi import in_utf8, read_message

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Bytes of one read.
READ_BYTES = 2**18
#: Fragments of a message that may be of any size; beyond them there may be one for so many bytes.
MAX_SMALL_FRAGMENTS, FRAGMENT_BYTES = 1000, 512
#: Pings, pongs and empty messages that a caller may send, beside one in a second.
MAX_EMPTY = 1000
#: Seconds that the caller gets for the closing handshake.
CLOSE_TIMEOUT_S = 1.0


class WebSocket:
    """One connection, for one thread.

    A message of more than ``max_bytes`` ends it (1009), as does one of a thousand tiny fragments, or a
    thousand pings, pongs and empty messages (1008), a frame that breaks the protocol (1002), a text that is
    not UTF-8 (1007), and its time (1001).

    Args:
        connection: The socket.
        max_bytes: Of a message.
        seconds: The longest time that it is open, whatever the caller does: its API key was checked once.
    """

    def __init__(self, connection: socket.socket, max_bytes: int, seconds: float) -> None:
        self._socket, self._max_bytes = connection, max_bytes
        #: The end of its time, in seconds of the monotonic clock.
        self.ends_at = time.monotonic() + seconds
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._protocol = Connection(ConnectionType.SERVER)
        self._messages: deque[bytes] = deque()
        self._partial, self._fragments = bytearray(), 0
        #: Pings, pongs and empty messages since a time.
        self._empty, self._began = 0, time.monotonic()

    def messages(self, is_stopping: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the caller's messages, then close the connection.

        Args:
            is_stopping: Ends the connection when it returns True.
        """
        while self._open and not is_stopping() and (seconds := self.ends_at - time.monotonic()) > 0:
            if self._messages:
                yield self._messages.popleft()
            else:
                self._receive(min(WATCH_S, seconds))
        self.close(CloseReason.GOING_AWAY)

    def send(self, payload: bytes, text: bool) -> None:
        """Send a message. Raises :class:`CallerGone` if the connection is closed."""
        # A caller may send on without an end.
        while self._open and not self._messages and time.monotonic() < self.ends_at and self._receive(0):
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
        with suppress(OSError):
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
        end, count = time.monotonic() + CLOSE_TIMEOUT_S, 0
        while self._protocol.state is ConnectionState.LOCAL_CLOSING:
            seconds = end - time.monotonic()
            if seconds <= 0 or not self._poll.poll(seconds * 1000):
                return
            received = self._socket.recv(READ_BYTES)
            if not received:
                return
            if not is_broken:
                self._protocol.receive_data(received)
                events = [*islice(self._protocol.events(), MAX_EMPTY)]  # a flood of them is not read on
                count += len(events)
                is_broken = count >= MAX_EMPTY or CloseConnection in map(type, events)

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
        if isinstance(event, MessagePart):
            self._partial += event.data.encode() if isinstance(event.data, str) else event.data
            self._fragments += event.frame_finished
            if len(self._partial) > self._max_bytes:
                self.close(CloseReason.MESSAGE_TOO_BIG)
            elif self._fragments > MAX_SMALL_FRAGMENTS + len(self._partial) // FRAGMENT_BYTES:
                self.close(CloseReason.POLICY_VIOLATION, "the message has too many small fragments")
            elif event.message_finished and (self._partial or self._may_be_empty()):
                self._messages.append(bytes(self._partial))
                self._partial.clear()
                self._fragments = 0
        elif isinstance(event, CloseConnection) and self._open:
            # wsproto reports a broken rule of the protocol as a close that leaves the connection open.
            self.close(event.code, event.reason, is_broken=True)
        elif isinstance(event, Ping | Pong):
            if self._may_be_empty() and isinstance(event, Ping):
                self._write(event.response())
        elif isinstance(event, CloseConnection) and self._protocol.state is ConnectionState.REMOTE_CLOSING:
            self._write(event.response())

    def _may_be_empty(self) -> bool:
        """Count a frame that asks for nothing; close the connection at one too many, and return False."""
        self._empty += 1
        may_be = self._empty <= MAX_EMPTY + 60 * ((time.monotonic() - self._began) // 60)
        if not may_be:
            self.close(CloseReason.POLICY_VIOLATION, "pings, pongs and empty messages come too fast")
        return may_be

    def _write(self, event: Event) -> None:
        self._socket.sendall(self._protocol.send(event))


PATH = "/invocations-bidirectional-stream"
#: An origin (RFC 6454): scheme, host and port. A URL's path or user is no part of it.
ORIGIN = re.compile(r"(?i)(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
DEFAULT_PORTS = {"http": "80", "https": "443"}


def parse_origin(text: str) -> tuple[str, str, str] | None:
    """Return scheme, host and port of an origin; None for what is none, such as ``null``."""
    match = ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme = match[1].lower()
    return scheme, match[2].lower(), match[3] or DEFAULT_PORTS[scheme]


def check_origin(origin: str | None, own: str, listed: Collection[str]) -> None:
    """Refuse a web page that may not use the box: browsers let a page of any origin open a WebSocket.

    Args:
        origin: The header; None if the caller sends none, as everything but a browser does.
        own: The origin under which the caller reached the box. Its pages may use it.
        listed: Other origins whose pages may.

    Raises:
        Forbidden: The origin is another one.
    """
    if origin is None:
        return
    parsed = parse_origin(origin)
    if parsed is None or parsed not in map(parse_origin, (own, *listed)):
        raise Forbidden(
            "pages of this origin may not open a WebSocket here; TRIREME_CORS_ORIGINS lists those that may"
        )


def blueprint(
    router: Router, max_connections: int, is_stopping: Callable[[], bool], origins: Collection[str] = ()
) -> Blueprint:
    """Create the WebSocket's route.

    Args:
        router: Answers the messages.
        max_connections: Open connections of each worker.
        is_stopping: Returns True if the box is about to stop.
        origins: Those of web pages that may open one, besides the box's own.
    """
    routes = Blueprint("websocket", __name__)
    slots = threading.BoundedSemaphore(max_connections)

    # Werkzeug keeps the routes of upgrades apart. The second route answers requests without one.
    @routes.get(PATH, websocket=True)
    @routes.get(PATH)
    def websocket() -> Response:
        handshake = read_message(request.environ, MAX_NEEDLESS_BODY_BYTES)
        accept = accept_token(handshake)
        scheme = handshake.headers.get("x-trireme-scheme", "http") if router.fronted else "http"
        own = f"{scheme}://{handshake.headers.get('host', '')}"
        check_origin(handshake.headers.get("origin"), own, origins)
        if not slots.acquire(blocking=False):
            raise Overloaded(
                f"{max_connections} WebSockets are open here already, and other callers need the last thread"
            )

        environ = {**request.environ}
        # A message's deadline begins with the message, not with the handshake that nginx had.
        environ.pop("HTTP_X_TRIREME_START", None)

        def serve(connection: Any) -> None:
            websocket = WebSocket(connection, router.max_body, router.stream_timeout)
            with suppress(CallerGone, OSError):
                headers = handshake.headers
                for body in websocket.messages(is_stopping):
                    message = handshake._replace(body=body, headers=headers, in_parts=True)
                    answer_headers = _answer(websocket, router, environ, message)
                    if NEW_SESSION_ID in answer_headers:
                        headers = {**headers, SESSION_HEADER: answer_headers[SESSION_ID]}

        return Upgraded(accept, serve, slots.release)

    return routes


class Upgraded(Response):
    """A 101 response; then ``serve`` has the connection, in the context of the request that opened it.

    Args:
        accept: The value of ``Sec-WebSocket-Accept``.
        serve: Called with the socket.
        release_slot: Called at the end.
    """

    def __init__(self, accept: str, serve: Callable[[Any], None], release_slot: Callable[[], None]) -> None:
        super().__init__(status=101)
        self._accept, self._serve, self._release_slot = accept, serve, release_slot
        self._context = contextvars.copy_context()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", self._accept),
        ]
        start_response("101 Switching Protocols", headers)
        return self._serve_connection(environ)

    def _serve_connection(self, environ: WSGIEnvironment) -> Iterator[bytes]:
        try:
            # An empty chunk makes gunicorn send the response's head.
            yield b""
            self._context.run(self._serve, environ["gunicorn.socket"])
        finally:
            self._release_slot()


def accept_token(handshake: Message) -> str:
    """Return the ``Sec-WebSocket-Accept`` of a well-formed handshake (RFC 6455, section 4.2)."""
    headers = handshake.headers
    key = headers.get("sec-websocket-key", "")
    if headers.get("upgrade", "").lower() != "websocket" or not key:
        raise BadInput("this path is a WebSocket's: the request must ask for an upgrade to websocket")
    if headers.get("sec-websocket-version") != "13":
        raise BadInput("the box speaks version 13 of the WebSocket protocol")
    return generate_accept_token(key.encode()).decode()


def _answer(
    websocket: WebSocket, router: Router, environ: WSGIEnvironment, message: Message
) -> Mapping[str, str]:
    """Answer a message; return the headers that the answer would have over HTTP."""
    try:
        invocation = router.begin(environ)
        invocation.limit(websocket.ends_at)
        answer = router.flow.answer(invocation, lambda: in_utf8(message))
        if answer.headers.keys() & {NEW_SESSION_ID, CLOSED_SESSION_ID}:
            # A message has no headers, and these are all that the answer says.
            answer.body = dumps(dict(answer.headers))
        _send(websocket, answer)
        return answer.headers
    except CallerGone:
        raise
    except TriremeError as error:
        websocket.send(write_error(error, message.request_id).read(), text=True)
        return {}


def _send(websocket: WebSocket, answer: Answer) -> None:
    """Send the answer as a message; a stream as one message for each chunk, then an empty message."""
    text = answer.content_type.startswith(("text/", JSON))
    if isinstance(answer.body, bytes):
        websocket.send(answer.body, text)
        return
    with finishing(answer.body):
        for chunk in answer.body:
            websocket.send(chunk, text)
    websocket.send(b"", text)
