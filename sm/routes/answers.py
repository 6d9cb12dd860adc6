"""Answers and errors to HTTP: the one place where an error becomes a response."""

from __future__ import annotations

import logging
import uuid

from flask import Flask, Response, g, request
from werkzeug import exceptions
from werkzeug.exceptions import HTTPException

from sm.errors import BadInput, ClientFailed, MethodNotAllowed, NotFound, TooLarge, TriremeError
from sm.invocation import Answer, write_error
from sm.streaming.events import EVENTS, ended
from sm.streaming.stream import finish

log = logging.getLogger(__name__)
#: Where a request's id comes from: nginx's choice, else what nginx would have chosen.
REQUEST_ID_HEADERS = ("X-Trireme-Request-Id", "X-Amzn-SageMaker-Inference-Id", "X-Amzn-Trace-Id")
LONGEST_ID = 256


def request_id() -> str:
    """The id of the request being served: the caller's, else one made here."""
    if "request_id" not in g:
        given = next((request.headers[name] for name in REQUEST_ID_HEADERS if request.headers.get(name)), "")
        g.request_id = given[:LONGEST_ID] or uuid.uuid4().hex
    chosen: str = g.request_id
    return chosen


def respond(answer: Answer) -> Response:
    """An answer as Flask wants it; Content-Length follows from a body that is there whole."""
    response = Response(answer.body, answer.status, dict(answer.headers), content_type=answer.content_type)
    if isinstance(answer.body, bytes):
        return response
    if answer.content_type.startswith(EVENTS):
        response.response = ended(answer.body, request_id())
    # nginx passes each chunk on as it comes.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(lambda: finish(answer.body))
    return response


def handle_errors(app: Flask) -> None:
    """Every error of ``app`` leaves in the contract's one shape: no HTML, no traceback."""

    @app.errorhandler(TriremeError)
    def known(error: TriremeError) -> Response:
        return respond(write_error(error, request_id()))

    @app.errorhandler(HTTPException)
    def of_flask(error: HTTPException) -> Response:
        response = respond(write_error(_translated(error), request_id()))
        if isinstance(error, exceptions.MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    @app.errorhandler(Exception)
    def unknown(error: Exception) -> Response:
        log.exception("unexpected error", extra={"request_id": request_id()})
        return respond(write_error(ClientFailed(f"unexpected {type(error).__name__}"), request_id()))


def _translated(error: HTTPException) -> TriremeError:
    if error.code == 404:
        return NotFound(f"no such path: {request.path[:200]}")
    if error.code == 405:
        return MethodNotAllowed("Method Not Allowed")
    if error.code == 413:
        return TooLarge("the body is larger than this box accepts")
    if error.code is not None and error.code < 500:
        return BadInput(error.description or error.name)
    return ClientFailed(error.name)
