"""``/invocations-bidirectional-stream``: a WebSocket on which each message is an invocation.

The 101 is sent like any response; then the request's thread serves the connection.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, request
from wsproto.utilities import generate_accept_token

from sm.errors import BadInput, CallerGone, Overloaded, TriremeError
from sm.http.messages import JSON, Answer, write_error
from sm.router.answer import dumps
from sm.router.invocation import SESSION_HEADER, Message
from sm.router.pipeline import CLOSED_SESSION_ID, NEW_SESSION_ID, SESSION_ID
from sm.router.streaming.stream import finish
from sm.router.streaming.websocket import WebSocket
from sm.router.wsgi import Service, invocation_of, read_message

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PATH = "/invocations-bidirectional-stream"


def blueprint(
    service: Service, max_connections: int, max_message: int, is_stopping: Callable[[], bool]
) -> Blueprint:
    """Create the WebSocket's route.

    Args:
        service: The collaborators.
        max_connections: Open connections of each worker.
        max_message: Bytes of a message.
        is_stopping: Returns True if the box is about to stop.
    """
    routes = Blueprint("websocket", __name__)
    slots = threading.BoundedSemaphore(max_connections)

    # Werkzeug keeps the routes of upgrades apart. The second route answers requests without one.
    @routes.get(PATH, websocket=True)
    @routes.get(PATH)
    def websocket() -> Response:
        handshake = read_message(request.environ, max_message)
        accept = accept_token(handshake)
        if not slots.acquire(blocking=False):
            raise Overloaded(
                f"{max_connections} WebSockets are open here already, and other callers need the last thread"
            )

        environ = {**request.environ}
        # A message's deadline begins with the message, not with the handshake that nginx had.
        environ.pop("HTTP_X_TRIREME_START", None)

        def serve(connection: Any) -> None:
            websocket = WebSocket(connection, max_message)
            with suppress(CallerGone, OSError):
                headers = handshake.headers
                for body in websocket.messages(service.stream_timeout, is_stopping):
                    message = handshake._replace(body=body, headers=headers, in_parts=True)
                    answer_headers = _answer(websocket, service, environ, message)
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
    websocket: WebSocket, service: Service, environ: WSGIEnvironment, message: Message
) -> Mapping[str, str]:
    """Answer a message; return the headers that the answer would have over HTTP."""
    try:
        invocation = invocation_of(environ, service.requests, service.timeout, service.fronted)
        answer = service.pipeline.answer(invocation, lambda: message)
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
    try:
        for chunk in answer.body:
            websocket.send(chunk, text)
    finally:
        finish(answer.body)
    websocket.send(b"", text)
