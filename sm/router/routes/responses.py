"""Turn answers and errors into HTTP responses. Only here does an error become a response."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Blueprint, Flask, Request, Response, request
from flask.globals import request_ctx
from werkzeug import exceptions
from werkzeug.exceptions import HTTPException

from sm.errors import BadInput, ClientFailed, MethodNotAllowed, NotFound, TooLarge, TriremeError
from sm.request_ids import given_id
from sm.router.answer import Answer, write_error
from sm.router.streaming.server_sent_events import EVENTS, with_final_error
from sm.router.streaming.stream import finish
from sm.run_state import MAX_CONTROL_BODY_BYTES

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)
#: Where it is kept.
REQUEST_ID_KEY = "trireme.request_id"


def current_request() -> Request:
    """The request being served, itself: what Flask has in its place looks for it with every use."""
    return request_ctx.request


def request_id(environ: WSGIEnvironment) -> str:
    """The id of a request: the caller's, else one made here."""
    chosen: str | None = environ.get(REQUEST_ID_KEY)
    if chosen is None:
        chosen = environ[REQUEST_ID_KEY] = given_id(environ) or uuid.uuid4().hex
    return chosen


class ReadResponse(Response):
    """An answer that is all there, and its headers too: werkzeug would look through copies of both."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.iter_encoded()


def respond(answer: Answer) -> Response:
    """An answer as Flask wants it; Content-Length follows from a body that is there whole."""
    headers = dict(answer.headers) or None
    if isinstance(answer.body, bytes):
        return ReadResponse(answer.body, answer.status, headers, content_type=answer.content_type)
    response = Response(answer.body, answer.status, headers, content_type=answer.content_type)
    if answer.content_type.startswith(EVENTS):
        response.response = with_final_error(answer.body, request_id(request.environ))
    # nginx passes each chunk on as it comes.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(lambda: finish(answer.body))
    return response


def handle_errors(app: Flask) -> None:
    """Every error of ``app`` leaves in the contract's one shape: no HTML, no traceback.

    Call this before routes are registered.
    """
    # A path with // is a 404: werkzeug would redirect it, in HTML that quotes the caller's Host.
    app.url_map.merge_slashes = False

    @app.errorhandler(TriremeError)
    def known(error: TriremeError) -> Response:
        return respond(write_error(error, request_id(request.environ)))

    @app.errorhandler(HTTPException)
    def of_flask(error: HTTPException) -> Response:
        response = respond(write_error(_to_trireme_error(error), request_id(request.environ)))
        if isinstance(error, exceptions.MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    @app.errorhandler(Exception)
    def unknown(error: Exception) -> Response:
        identity = request_id(request.environ)
        log.exception("unexpected error", extra={"request_id": identity})
        return respond(write_error(ClientFailed(f"unexpected {type(error).__name__}"), identity))


def limit_bodies(routes: Blueprint, limit: int = MAX_CONTROL_BODY_BYTES) -> None:
    """Have all of these routes refuse a body that is declared larger than ``limit`` bytes."""

    @routes.before_request
    def check_size() -> None:
        if (request.content_length or 0) > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes this box accepts here")


def _to_trireme_error(error: HTTPException) -> TriremeError:
    if error.code == 404:
        return NotFound(f"no such path: {request.path[:200]}")
    if error.code == 405:
        return MethodNotAllowed("Method Not Allowed")
    if error.code == 413:
        return TooLarge("the body is larger than this box accepts")
    if error.code is not None and error.code < 500:
        return BadInput(error.description or error.name)
    return ClientFailed(error.name)
