"""Turn the answers of invocations into HTTP responses; an answer may be a stream."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from flask import Response, request
from werkzeug.http import HTTP_STATUS_CODES

from sm.http.messages import EVENTS, Answer
from sm.http.responses import ReadResponse, request_id
from sm.router.streaming.server_sent_events import with_final_error
from sm.router.streaming.stream import finish

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


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
