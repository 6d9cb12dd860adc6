"""``/invocations-bidirectional-stream``: a WebSocket on which each message is an invocation.

gunicorn writes the 101 like the head of any answer; then its thread serves the connection.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, request
from wsproto.utilities import generate_accept_token

from sm.errors import BadInput, CallerGone, Overloaded, TriremeError
from sm.router.answer import Answer, write_error
from sm.router.invocation import JSON, Message
from sm.router.routes import request_handling
from sm.router.routes.invocations import Service, process_message
from sm.router.streaming.stream import finish
from sm.router.streaming.websocket import WebSocket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PATH = "/invocations-bidirectional-stream"


def blueprint(service: Service, most: int, largest: int, stopping: Callable[[], bool]) -> Blueprint:
    """Return the WebSocket's route, for ``most`` connections at once in each worker.

    ``largest``: a message's size in bytes. ``stopping``: returns True if the box is about to stop.
    """
    routes = Blueprint("conversations", __name__)
    room = threading.BoundedSemaphore(most)

    # werkzeug separates upgrades from other requests; a request without one gets an error that says so.
    @routes.get(PATH, websocket=True)
    @routes.get(PATH)
    def conversation() -> Response:
        opening = request_handling.read_message(request.environ, largest)
        accept = handle_websocket(opening)
        # A message's time begins with the message, not with the connection.
        direct = replace(service, fronted=False)
        if not room.acquire(blocking=False):
            raise Overloaded(f"there are {most} conversations here already, and other callers need a thread")

        caller = request_handling.api_key_name(request.environ, service.fronted)

        def talk(connection: Any) -> None:
            line = WebSocket(connection, largest)
            with suppress(CallerGone, OSError):
                for body in line.messages(service.stream_timeout, stopping):
                    _answer(line, direct, opening._replace(body=body), caller)

        return Upgraded(accept, talk, room.release)

    return routes


class Upgraded(Response):
    """A 101, then the messages, in the context of the request that opened the connection; ``over`` is called
    at the end.
    """

    def __init__(self, accept: str, talk: Callable[[Any], None], over: Callable[[], None]) -> None:
        super().__init__(status=101)
        self._accept, self._talk, self._over = accept, talk, over
        self._context = contextvars.copy_context()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", self._accept),
        ]
        start_response("101 Switching Protocols", headers)
        return self._conversation(environ)

    def _conversation(self, environ: WSGIEnvironment) -> Iterator[bytes]:
        try:
            # An empty chunk makes gunicorn send the head.
            yield b""
            self._context.run(self._talk, environ["gunicorn.socket"])
        finally:
            self._over()


def handle_websocket(opening: Message) -> str:
    """Answer a well-formed handshake (RFC 6455, section 4.2)."""
    headers = opening.headers
    key = headers.get("sec-websocket-key", "")
    if headers.get("upgrade", "").lower() != "websocket" or not key:
        raise BadInput("this path is a WebSocket's: the request must ask for an upgrade to websocket")
    if headers.get("sec-websocket-version") != "13":
        raise BadInput("the box speaks version 13 of the WebSocket protocol")
    return generate_accept_token(key.encode()).decode()


def _answer(line: WebSocket, service: Service, message: Message, caller: str) -> None:
    try:
        with request_handling.RequestRecorder(message.request_id, caller, service.requests) as recorder:
            answer = process_message(service, request.environ, message, True, recorder)
        _send(line, answer)
    except CallerGone:
        raise
    except TriremeError as error:
        line.send(write_error(error, message.request_id).read(), text=True)


def _send(line: WebSocket, answer: Answer) -> None:
    """Send the answer as a message; a stream as one message for each chunk, and an empty one."""
    text = answer.content_type.startswith(("text/", JSON))
    if isinstance(answer.body, bytes):
        line.send(answer.body, text)
        return
    try:
        for chunk in answer.body:
            line.send(chunk, text)
    finally:
        finish(answer.body)
    line.send(b"", text)
