"""HTTP as both planes speak it. No other module turns an error into a response."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from flask import Flask, Response, request
from werkzeug import exceptions
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import get_path_info

from sm.entry_points import advice
from sm.errors import (
    BadInput,
    ClientFailed,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TriremeError,
    as_trireme_error,
)
from sm.http.media_types import ROUTES, RouteTypes, negotiate
from sm.http.messages import JSON, TEXT, Answer, given_id, write_error

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)
#: A variable part of a path as Flask writes it.
RULE_PART = re.compile(r"<(?:\w+:)?(\w+)>")

#: Where a request's WSGI environment stores its id, and the code of the error that answers it.
REQUEST_ID_KEY, ERROR_CODE_KEY = "trireme.request_id", "trireme.error_code"
#: Where it has the request's headers, with names in lower case, if the server has made them already.
HEADERS_KEY = "trireme.headers"


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


class HeldBody(tuple[bytes, ...]):
    """A whole body that holds something until the server has sent it and closes it."""

    close: Callable[[], object]


class ReadResponse(Response):
    """A response with its whole body. It skips the copies and checks that werkzeug makes for others."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        body = HeldBody(() if environ["REQUEST_METHOD"] == "HEAD" else self.iter_encoded())
        body.close = self.close
        return body


def respond(answer: Answer) -> Response:
    """Respond with a complete body to the request that Flask serves."""
    response = ReadResponse(
        answer.read(), answer.status, dict(answer.headers) or None, content_type=answer.content_type
    )
    if answer.on_sent:
        response.call_on_close(answer.on_sent)
    return response


def handle_errors(app: Flask, types: Mapping[str, RouteTypes] = ROUTES) -> None:
    """Make every error of ``app`` JSON: no HTML, no traceback.

    Call this before routes are registered. ``types``: what routes take and give, by method and path.
    """
    # A path with // is a 404. Werkzeug would redirect it, with HTML that contains the caller's Host.
    app.url_map.merge_slashes = False
    # Flask would answer OPTIONS itself, as an empty page in HTML.
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    @app.before_request
    def check_accept() -> None:
        """Refuse a request before it changes anything, if its caller does not take the route's one type."""
        rule = request.url_rule.rule if request.url_rule else ""
        path = RULE_PART.sub(r"{\1}", rule)
        route = types.get(f"{request.method} {path}")
        if route is not None and len(route.gives) == 1 and route.gives[0] in (JSON, TEXT):
            negotiate(request.headers.get("Accept", ""), route.gives)

    @app.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        return respond(error_answer(error, request.environ))


def error_answer(
    error: Exception,
    environ: WSGIEnvironment,
    write: Callable[[TriremeError, str], Answer] = write_error,
) -> Answer:
    """Return the error answer for any exception; ``write`` encodes it."""
    identity = request_id(environ)
    if isinstance(error, HTTPException):
        trireme_error = _to_trireme_error(error, environ)
    else:
        trireme_error = as_trireme_error(error)
        if trireme_error is not error:
            log.error("unexpected error", exc_info=error, extra={"request_id": identity})
    environ[ERROR_CODE_KEY] = trireme_error.code
    answer = write(trireme_error, identity)
    if isinstance(error, exceptions.MethodNotAllowed) and error.valid_methods:
        answer.headers = {**answer.headers, "Allow": ", ".join(sorted(error.valid_methods))}
    return answer


def _to_trireme_error(error: HTTPException, environ: WSGIEnvironment) -> TriremeError:
    if error.code == 404:
        path = get_path_info(environ)[:200]
        return NotFound(f"no such path: {path}{advice(path)}")
    if error.code == 405:
        return MethodNotAllowed("Method Not Allowed")
    if error.code == 413:
        return TooLarge("the body is larger than this box accepts")
    if error.code is not None and error.code < 500:
        return BadInput(error.description or error.name)
    return ClientFailed(error.name)
