"""HTTP in and out, without Flask for nearly all requests: a message is read, an answer becomes a response."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from flask import Flask, Response
from flask import Request as FlaskRequest
from flask import request as flask_request
from gunicorn.http.errors import ParseException
from werkzeug import Request
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.routing import MapAdapter
from werkzeug.wsgi import get_content_length, get_input_stream

from sm.deadline import Deadline, running
from sm.errors import BadInput, TooLarge
from sm.http.messages import EVENTS, Answer
from sm.http.responses import REQUEST_ID_KEY, ReadResponse, error_answer, request_id, with_request_id
from sm.router.invocation import HEADER_PREFIX, Message
from sm.router.pipeline import Pipeline
from sm.router.running import RequestLog, RunningInvocation
from sm.router.streaming.aws_eventstream import EVENT_STREAM, frames
from sm.router.streaming.server_sent_events import with_final_error
from sm.router.streaming.stream import finish

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Headers with variables of their own in WSGI, and variables that could be mistaken for them.
CGI_HEADERS = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
NOT_HEADERS = frozenset(f"HTTP_{name}" for name in CGI_HEADERS)
#: WSGI variables that are not headers; skipping them as a set is faster than looking at each name.
SERVER_VARIABLES = frozenset(
    {
        "REQUEST_METHOD",
        "SCRIPT_NAME",
        "PATH_INFO",
        "QUERY_STRING",
        "RAW_URI",
        "REQUEST_URI",
        "REMOTE_ADDR",
        "REMOTE_PORT",
        "SERVER_NAME",
        "SERVER_PORT",
        "SERVER_PROTOCOL",
        "SERVER_SOFTWARE",
        "wsgi.version",
        "wsgi.url_scheme",
        "wsgi.input",
        "wsgi.input_terminated",
        "wsgi.errors",
        "wsgi.multithread",
        "wsgi.multiprocess",
        "wsgi.run_once",
        "wsgi.file_wrapper",
        "gunicorn.socket",
    }
)
BODY_TOO_LARGE = "the body is larger than this box accepts"
#: Flags to look at a connection without waiting and without taking bytes from it.
PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
#: Bytes of one read from a body.
READ_BYTES = 2**18
#: The header that asks where a request's time went, and where WSGI has the listener of a traced request.
TIMING_HEADER, LISTENER_KEY = "HTTP_X_TRIREME_TIMING", "trireme.listener"


def read_message(environ: WSGIEnvironment, max_body: int, model: str = "", target: str = "") -> Message:
    """Read the request.

    Args:
        environ: Of the request.
        max_body: Bytes of its body, at most.
        model: The model in the path.
        target: Path and query of a request in Triton's own API.
    """
    query = environ.get("QUERY_STRING")
    return Message(
        read_body(environ, max_body),
        read_headers(environ),
        read_query(query) if query else NO_PARAMETERS,
        environ.get(REQUEST_ID_KEY) or request_id(environ),
        model,
        target,
    )


NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


@lru_cache(maxsize=256)  # callers send the same ones again and again
def read_query(query: str) -> Mapping[str, str]:
    """Return the parameters of a WSGI query string, read-only; of several of one name the first."""
    return MappingProxyType(Request({"REQUEST_METHOD": "POST", "QUERY_STRING": query}).args.to_dict())


def read_body(environ: WSGIEnvironment, max_body: int) -> bytes:
    """Read the whole body. Werkzeug would hold a large one in memory twice for a moment."""
    text = environ.get("CONTENT_LENGTH", "")
    plain = text.isdecimal() and text.isascii() and "HTTP_TRANSFER_ENCODING" not in environ
    length = int(text) if plain else get_content_length(environ)
    if length is None:
        return _read_chunks(environ, max_body)
    if length > max_body:
        raise TooLarge(BODY_TOO_LARGE)
    # gunicorn ends the stream where the body ends. For other servers, werkzeug limits it to the length.
    stream = environ["wsgi.input"] if "wsgi.input_terminated" in environ else get_input_stream(environ)
    try:
        piece = stream.read(min(READ_BYTES, length))
        if len(piece) == length:
            return piece
        body = io.BytesIO(bytes(length))
        while piece:
            body.write(piece)
            piece = stream.read(min(READ_BYTES, length - body.tell()))
    except (HTTPException, OSError) as error:
        raise BadInput("the body did not arrive whole") from error
    body.truncate()
    return body.getvalue()


def _read_chunks(environ: WSGIEnvironment, max_body: int) -> bytes:
    """Read a body of unknown length."""
    try:
        # One byte more: werkzeug ends a longer body at its limit, and says nothing.
        body = get_input_stream(environ, max_content_length=max_body + 1).read()
    except (HTTPException, ParseException) as error:
        raise BadInput("the chunks of the body are malformed") from error
    if len(body) > max_body:
        raise TooLarge(BODY_TOO_LARGE)
    return body


def read_headers(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the request's headers, with names in lower case."""
    headers: dict[str, str] = {}
    for name in environ.keys() - SERVER_VARIABLES:
        if header := header_name(name):
            value = environ[name]
            if value or name not in CGI_HEADERS:
                headers[header] = value
    return headers


@lru_cache(maxsize=1024)  # Callers send the same few headers.
def header_name(variable: str) -> str:
    """Return the header of a WSGI variable; empty if it is none."""
    if not variable.startswith("HTTP_") or variable in NOT_HEADERS:
        return CGI_HEADERS.get(variable, "")
    return variable[5:].replace("_", "-").lower()


def invocation_of(
    environ: WSGIEnvironment, requests: RequestLog, timeout: float, fronted: bool
) -> RunningInvocation:
    """Begin the invocation of a request.

    Args:
        environ: Of the request.
        requests: Decides whether it is logged.
        timeout: Seconds from when nginx had the request, so they include the wait for a worker.
        fronted: True if nginx is in front. Without it, callers could set its headers themselves.
    """
    identity = environ.get("HTTP_X_TRIREME_REQUEST_ID", "") if fronted else ""
    if identity:
        environ[REQUEST_ID_KEY] = identity  # nginx has checked it
    waited = 0.0
    if fronted and (start := environ.get("HTTP_X_TRIREME_START")):
        try:
            waited = max(0.0, time.time() - float(start))
        except ValueError:
            waited = 0.0
    return RunningInvocation(
        requests,
        identity or request_id(environ),
        timeout,
        waited,
        partial(_is_disconnected, environ.get("gunicorn.socket")),
        environ.get(LISTENER_KEY),
        environ.get("HTTP_X_TRIREME_KEY_NAME", "") if fronted else "",
        environ.get("HTTP_X_TRIREME_ADDRESS" if fronted else "REMOTE_ADDR", ""),
        TIMING_HEADER in environ,
    )


def seconds_waited(environ: WSGIEnvironment) -> float:
    """Return the seconds from when nginx handed the request on until a worker took it."""
    try:
        return max(0.0, time.time() - float(environ["HTTP_X_TRIREME_START"]))
    except (KeyError, ValueError):
        return 0.0


def within_deadline(environ: WSGIEnvironment, seconds: float, fronted: bool) -> running:
    """Set the deadline of a request that runs no model. Raises if it has passed already."""
    waited = seconds_waited(environ) if fronted else 0.0
    connection = environ.get("gunicorn.socket")
    limit = Deadline(
        time.monotonic() + seconds - waited,
        partial(_is_disconnected, connection),
        request_id(environ),
        listener=environ.get(LISTENER_KEY),
    )
    limit.check()
    return running(limit)


def _is_disconnected(connection: socket.socket | None) -> bool:
    """True if the peer closed the connection: then a peek reads the end of file."""
    if connection is None:
        return False
    try:
        return connection.recv(1, PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


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
    return to_response(answer, flask_request.environ)


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


@dataclass(frozen=True)
class Service:
    """The pipeline as the routes call it."""

    pipeline: Pipeline
    #: Decides which requests are logged.
    requests: RequestLog
    #: Bytes of a request's body, and seconds of an invocation, at most.
    max_body: int
    timeout: float
    #: Seconds of a streamed invocation, at most.
    stream_timeout: float
    #: True if nginx is in front, so that its headers can be trusted: time of arrival, name of the API key.
    fronted: bool

    def answer(self, environ: WSGIEnvironment, model: str = "", target: str = "") -> Answer:
        """Answer a request that runs a model.

        Args:
            environ: Of the request.
            model: The model in the path.
            target: Path and query of a request in Triton's own API.
        """
        return self.pipeline.answer(
            invocation_of(environ, self.requests, self.timeout, self.fronted),
            partial(read_message, environ, self.max_body, model, target),
        )

    def answer_in_parts(self, environ: WSGIEnvironment) -> Answer:
        """Answer a request of the runtime's streaming call, in AWS's event-stream frames."""
        return frame_answer(
            self.pipeline.answer(
                invocation_of(environ, self.requests, self.timeout, self.fronted),
                lambda: with_runtime_accept(read_message(environ, self.max_body)),
            )
        )


def direct(service: Service) -> dict[str, WSGIApplication]:
    """Return the WSGI handlers of POST by path, which :class:`sm.router.app.Router` calls without Flask."""

    def invoke(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return send(service.answer(environ), environ, start_response)
        except Exception as error:
            return send(error_answer(error, environ), environ, start_response)

    return {"/invocations": invoke}


def with_runtime_accept(message: Message) -> Message:
    """Take the Accept header from the one that the runtime's streaming call has in its place."""
    accept = message.headers.get(f"{HEADER_PREFIX}accept", "")
    return message._replace(headers={**message.headers, "accept": accept}, in_parts=True)


def frame_answer(answer: Answer) -> Answer:
    """Encode an answer as frames: one for each chunk of a stream, or as many as a complete body needs."""
    chunks = iter((answer.body,)) if isinstance(answer.body, bytes) else answer.body
    headers = {**answer.headers, "X-Amzn-SageMaker-Content-Type": answer.content_type}
    return Answer(frames(chunks), EVENT_STREAM, headers=headers)


class Router(Flask):
    """Flask with a shortcut for the paths of nearly all requests, and without host matching.

    Args:
        name: Of the Flask application.
        fronted: True if nginx is in front; it adds the request's id to each response.
    """

    def __init__(self, name: str, fronted: bool) -> None:
        super().__init__(name)
        self._fronted = fronted
        #: Applications by path that answer a POST without Flask.
        self.direct: dict[str, WSGIApplication] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("//"):  # nginx and Flask take it for one slash too
            path = environ["PATH_INFO"] = f"/{path.lstrip('/')}"
        application = self.direct.get(path) if environ["REQUEST_METHOD"] == "POST" else None
        start = start_response if self._fronted else with_request_id(environ, start_response)
        return (application or self.wsgi_app)(environ, start)

    def create_url_adapter(self, request: FlaskRequest | None) -> MapAdapter | None:
        # Only werkzeug's own adapter tells a WebSocket's routes from the others.
        if request is None or "HTTP_UPGRADE" in request.environ:
            return super().create_url_adapter(request)
        return MapAdapter(self.url_map, "localhost", "/", "", "http", request.path, request.method)
