"""Turn answers and errors into HTTP responses. No other module turns an error into a response."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from flask import Blueprint, Flask, Response, request
from werkzeug import exceptions
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_path_info

from sm.errors import BadInput, ClientFailed, MethodNotAllowed, NotFound, TooLarge, TriremeError
from sm.request_ids import given_id
from sm.router.answer import Answer, write_error
from sm.router.invocation import EVENTS
from sm.router.streaming.server_sent_events import with_final_error
from sm.router.streaming.stream import finish
from sm.run_state import MAX_CONTROL_BODY_BYTES

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)
#: Where a request's WSGI environment stores its id, and the code of the error that answers it.
REQUEST_ID_KEY, ERROR_CODE_KEY = "trireme.request_id", "trireme.error_code"


def request_id(environ: WSGIEnvironment) -> str:
    """Return a request's id: the caller's, else a new one."""
    identity: str | None = environ.get(REQUEST_ID_KEY)
    if identity is None:
        identity = environ[REQUEST_ID_KEY] = given_id(environ) or os.urandom(16).hex()
    return identity


def with_request_id(environ: WSGIEnvironment, start_response: StartResponse) -> StartResponse:
    """Add the request's id to the response's headers, as nginx does."""

    def begin(
        status: str, headers: list[tuple[str, str]], exc_info: OptExcInfo | None = None, /
    ) -> Callable[[bytes], object]:
        return start_response(status, [*headers, ("X-Request-Id", request_id(environ))], exc_info)

    return begin


class ReadResponse(Response):
    """A response with its whole body. It skips the copies and checks that werkzeug makes for others."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.iter_encoded()


def send(answer: Answer, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Begin the response to a POST and return its body for WSGI."""
    body = answer.body
    if answer.headers or not isinstance(body, bytes):
        return to_response(answer, environ)(environ, start_response)
    # Most answers need no more headers. Werkzeug's response would take as long as the rest of this module.
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
    start_response(status_line(answer.status), headers)
    return (body,)


@lru_cache
def status_line(status: int) -> str:
    """Format the status line as werkzeug does."""
    return f"{status} {HTTP_STATUS_CODES.get(status, 'unknown').upper()}"


def respond(answer: Answer) -> Response:
    """Respond to the request that Flask serves."""
    return to_response(answer, request.environ)


def to_response(answer: Answer, environ: WSGIEnvironment) -> Response:
    """Convert an answer for Flask; a complete body gets its Content-Length."""
    headers = dict(answer.headers) or None
    if isinstance(answer.body, bytes):
        return ReadResponse(answer.body, answer.status, headers, content_type=answer.content_type)
    response = Response(answer.body, answer.status, headers, content_type=answer.content_type)
    if answer.content_type.startswith(EVENTS):
        response.response = with_final_error(answer.body, request_id(environ))
    # nginx passes each chunk on as it arrives.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(lambda: finish(answer.body))
    return response


def handle_errors(app: Flask) -> None:
    """Make every error of ``app`` JSON: no HTML, no traceback.

    Call this before routes are registered.
    """
    # A path with // is a 404. Werkzeug would redirect it, with HTML that contains the caller's Host.
    app.url_map.merge_slashes = False
    # Flask would answer OPTIONS itself, as an empty page in HTML.
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    @app.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        return respond(error_answer(error, request.environ))


def error_answer(error: Exception, environ: WSGIEnvironment) -> Answer:
    """Return the error answer for any exception."""
    identity = request_id(environ)
    if isinstance(error, HTTPException):
        trireme_error = _to_trireme_error(error, environ)
    elif isinstance(error, TriremeError):
        trireme_error = error
    else:
        log.error("unexpected error", exc_info=error, extra={"request_id": identity})
        trireme_error = ClientFailed(f"unexpected {type(error).__name__}")
    environ[ERROR_CODE_KEY] = trireme_error.code
    answer = write_error(trireme_error, identity)
    if isinstance(error, exceptions.MethodNotAllowed) and error.valid_methods:
        answer.headers = {**answer.headers, "Allow": ", ".join(sorted(error.valid_methods))}
    return answer


def limit_bodies(routes: Blueprint, limit: int = MAX_CONTROL_BODY_BYTES) -> None:
    """Refuse bodies with a Content-Length of more than ``limit`` bytes on these routes."""

    @routes.before_request
    def check_size() -> None:
        if (request.content_length or 0) > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes this box accepts here")


def _to_trireme_error(error: HTTPException, environ: WSGIEnvironment) -> TriremeError:
    if error.code == 404:
        return NotFound(f"no such path: {get_path_info(environ)[:200]}")
    if error.code == 405:
        return MethodNotAllowed("Method Not Allowed")
    if error.code == 413:
        return TooLarge("the body is larger than this box accepts")
    if error.code is not None and error.code < 500:
        return BadInput(error.description or error.name)
    return ClientFailed(error.name)
