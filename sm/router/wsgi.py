"""HTTP in and out, and the routes that run a model: a message is read, an answer becomes a response.

Nearly all requests are a POST to ``/invocations``; they go past Flask.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Flask, Response, request
from flask import Request as FlaskRequest
from flask import request as flask_request
from gunicorn.http.errors import ParseException
from werkzeug import Request
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.routing import MapAdapter
from werkzeug.wsgi import get_content_length, get_input_stream

from sm.client.decode_budget import DECODED
from sm.client.payloads import MIN_BASE64_BYTES
from sm.errors import BadInput, ClientFailed, ModelFailed, TooLarge, TriremeError, UnknownModel
from sm.http.media_types import is_text, kind_of, to_utf8, without_charset
from sm.http.messages import BOM, EVENTS, Answer, write_error
from sm.http.responses import (
    REQUEST_ID_KEY,
    ReadResponse,
    error_answer,
    handle_errors,
    request_id,
    with_request_id,
)
from sm.router.aws_frames import EVENT_STREAM, frames
from sm.router.back_pressure import finish
from sm.router.classify import HEADER_PREFIX, Message
from sm.router.event_streams import with_final_error
from sm.router.pipeline import Pipeline
from sm.router.running_invocation import LogSample, RunningInvocation

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Headers with variables of their own in WSGI, and variables that could be mistaken for them.
CGI_HEADERS = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
NOT_HEADERS = frozenset(f"HTTP_{name}" for name in CGI_HEADERS)
#: WSGI variables that are not headers; skipping them as a set is faster than looking at each name.
SERVER_VARIABLES = frozenset(
    """REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING RAW_URI REQUEST_URI REMOTE_ADDR REMOTE_PORT
    SERVER_NAME SERVER_PORT SERVER_PROTOCOL SERVER_SOFTWARE wsgi.version wsgi.url_scheme wsgi.input
    wsgi.input_terminated wsgi.errors wsgi.multithread wsgi.multiprocess wsgi.run_once wsgi.file_wrapper
    gunicorn.socket""".split()  # noqa: SIM905
)
BODY_TOO_LARGE = "the body is larger than this box accepts"
#: Flags to look at a connection without waiting and without taking bytes from it.
PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
#: Bytes of one read from a body.
READ_BYTES = 2**18
#: Bytes of memory that a byte of a text takes while it is decoded by its charset.
BYTES_PER_CHARACTER = 4
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
    message = Message(
        read_body(environ, max_body),
        read_headers(environ),
        read_query(query) if query else NO_PARAMETERS,
        environ.get(REQUEST_ID_KEY) or request_id(environ),
        model,
        target,
    )
    has_charset = "charset" in message.headers.get("content-type", "").lower()
    return in_utf8(message) if has_charset or message.body.startswith(BOM) else message


def in_utf8(message: Message) -> Message:
    """Return a message whose text is UTF-8 without a byte order mark, whatever charset its caller chose."""
    body, content_type = message.body, message.headers.get("content-type", "")
    with DECODED.reserve(BYTES_PER_CHARACTER * len(body) if len(body) >= MIN_BASE64_BYTES else 0):
        body = to_utf8(body, content_type)
    if not content_type or not is_text(kind_of(content_type)):
        return message._replace(body=body)
    return message._replace(
        body=body, headers={**message.headers, "content-type": without_charset(content_type)}
    )


NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


@lru_cache(maxsize=256)  # callers send the same ones again and again
def read_query(query: str) -> Mapping[str, str]:
    """Return the parameters of a WSGI query string, read-only; of several of one name the first."""
    return MappingProxyType(Request({"REQUEST_METHOD": "POST", "QUERY_STRING": query}).args.to_dict())


def read_body(environ: WSGIEnvironment, max_body: int) -> bytes:
    """Read the whole body. Werkzeug would hold a large one in memory twice for a moment."""
    text = environ.get("CONTENT_LENGTH", "")
    plain = len(text) < 19 and text.isdecimal() and text.isascii() and "HTTP_TRANSFER_ENCODING" not in environ
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
    """The application: Flask, with a shortcut for the path of nearly all requests, and without host matching.

    Args:
        pipeline: Answers invocations.
        sample: Which of them are logged.
        max_body: Bytes of a request's body, at most.
        timeout: Seconds of an invocation, at most.
        stream_timeout: Seconds of a streamed invocation, at most.
        fronted: True if nginx is in front: it adds the request's id to each response, and its headers can be
            trusted (time of arrival, name of the API key).
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sample: LogSample,
        max_body: int,
        timeout: float,
        stream_timeout: float,
        fronted: bool,
    ) -> None:
        super().__init__("trireme")
        self.config["MAX_CONTENT_LENGTH"] = max_body
        self.pipeline, self.sample, self.fronted = pipeline, sample, fronted
        self.max_body, self.timeout, self.stream_timeout = max_body, timeout, stream_timeout
        handle_errors(self)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("//"):  # nginx and Flask take it for one slash too
            path = environ["PATH_INFO"] = f"/{path.lstrip('/')}"
        start = start_response if self.fronted else with_request_id(environ, start_response)
        if path != "/invocations" or environ["REQUEST_METHOD"] != "POST":
            return self.wsgi_app(environ, start)
        try:
            return send(self.answer(environ), environ, start)
        except Exception as error:
            return send(error_answer(error, environ), environ, start)

    def answer(self, environ: WSGIEnvironment, model: str = "", target: str = "") -> Answer:
        """Answer a request that runs a model.

        Args:
            environ: Of the request.
            model: The model in the path.
            target: Path and query of a request in Triton's own API.
        """
        return self.pipeline.answer(
            self.begin(environ), partial(read_message, environ, self.max_body, model, target)
        )

    def answer_in_parts(self, environ: WSGIEnvironment) -> Answer:
        """Answer a request of the runtime's streaming call, in AWS's event-stream frames."""
        return frame_answer(
            self.pipeline.answer(
                self.begin(environ), lambda: with_runtime_accept(read_message(environ, self.max_body))
            )
        )

    def begin(self, environ: WSGIEnvironment) -> RunningInvocation:
        """Begin the invocation of a request. Its time includes the wait for a worker, if nginx is in front.

        Without nginx, callers could set its headers themselves.
        """
        waited, arrival, fronted = 0.0, "", self.fronted
        if fronted:
            if identity := environ.get("HTTP_X_TRIREME_REQUEST_ID"):
                environ[REQUEST_ID_KEY] = identity  # nginx has checked it
            try:
                arrival = environ["HTTP_X_TRIREME_START"]
                waited = max(0.0, time.time() - float(arrival))
            except (KeyError, ValueError):
                waited = 0.0
        invocation = RunningInvocation(
            time.monotonic() + self.timeout - waited,
            partial(_is_disconnected, environ.get("gunicorn.socket")),
            environ.get(REQUEST_ID_KEY) or request_id(environ),
            environ.get(LISTENER_KEY),
            self.sample,
            waited,
            environ.get("HTTP_X_TRIREME_KEY_NAME", "") if fronted else "",
            environ.get("HTTP_X_TRIREME_ADDRESS" if fronted else "REMOTE_ADDR", ""),
            TIMING_HEADER in environ,
        )
        invocation.arrival = arrival
        return invocation

    def create_url_adapter(self, request: FlaskRequest | None) -> MapAdapter | None:
        # Only werkzeug's own adapter tells a WebSocket's routes from the others.
        if request is None or "HTTP_UPGRADE" in request.environ:
            return super().create_url_adapter(request)
        return MapAdapter(self.url_map, "localhost", "/", "", "http", request.path, request.method)


OTHER_METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]


def blueprint(router: Router) -> Blueprint:
    """Return the routes that run a model, besides the router's shortcut."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=OTHER_METHODS)
    def invocations() -> Response:
        raise MethodNotAllowed(valid_methods=["POST"])

    @routes.post("/models/<name>/invoke")
    def invoke(name: str) -> Response:
        try:
            return respond(router.answer(request.environ, model=name))
        except (ClientFailed, ModelFailed):
            if router.pipeline.models.known(name):
                raise
            # The model was unloaded while the request ran, so its files are gone.
            raise UnknownModel(f"the model {name[:200]!r} was unloaded while it was invoked") from None

    @routes.route("/endpoints/<name>/invocations", methods=["POST"])
    def endpoint(name: str) -> Response:
        return respond_as_endpoint(name, lambda: router.answer(request.environ))

    @routes.route("/endpoints/<name>/invocations-response-stream", methods=["POST"])
    def response_stream(name: str) -> Response:
        return respond_as_endpoint(name, lambda: router.answer_in_parts(request.environ))

    return routes


def respond_as_endpoint(name: str, container: Callable[[], Answer]) -> Response:
    """Translate the container's answer as SageMaker does: every error is a 424 ``ModelError``."""
    try:
        answer = container()
    except TriremeError as error:
        answer = _model_error(write_error(error, request_id(request.environ)), name)
    answer.headers = {**answer.headers, "x-Amzn-Invoked-Production-Variant": "AllTraffic"}
    return respond(answer)


def _model_error(answer: Answer, endpoint: str) -> Answer:
    original = answer.read().decode()
    kind = "client" if answer.status < 500 else "server"
    body = {
        "Message": f'Received {kind} error ({answer.status}) from primary with message "{original}"',
        "OriginalStatusCode": answer.status,
        "OriginalMessage": original,
        "LogStreamArn": f"local:/endpoints/{endpoint}",
    }
    return Answer(orjson.dumps(body), status=424, headers={"x-amzn-ErrorType": "ModelError"})
