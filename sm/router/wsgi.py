"""HTTP in and out: a message is read, an answer becomes a response."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from flask import Response
from flask import request as flask_request
from gunicorn.http.errors import ParseException
from werkzeug import Request
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_content_length, get_input_stream

from sm.client.decode_budget import DECODED
from sm.errors import BadInput, body_too_large
from sm.http import responses
from sm.http.media_types import is_text, kind_of, to_utf8, without_charset
from sm.http.messages import BOM, EVENTS, LARGE_BODY_BYTES, Answer
from sm.http.responses import HEADERS_KEY, REQUEST_ID_KEY, request_id
from sm.router.back_pressure import finish
from sm.router.event_streams import with_final_error
from sm.router.request_types import Message

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: Headers with variables of their own in WSGI, and variables that could be mistaken for them.
CGI_HEADERS = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
NOT_HEADERS = frozenset(f"HTTP_{name}" for name in CGI_HEADERS)
#: Flags to look at a connection without waiting and without taking bytes from it.
PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
#: Bytes of one read from a body.
READ_BYTES = 2**18
#: Bytes of memory that a byte of a text takes while it is decoded by its charset.
BYTES_PER_CHARACTER = 4


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
        environ.get(HEADERS_KEY) or read_headers(environ),
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
    with DECODED.reserve(BYTES_PER_CHARACTER * len(body) if len(body) >= LARGE_BODY_BYTES else 0):
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
    """Read the whole body, which may come in chunks. Werkzeug would hold a large one in memory twice."""
    text = environ.get("CONTENT_LENGTH", "")
    plain = len(text) < 19 and text.isdecimal() and text.isascii() and "HTTP_TRANSFER_ENCODING" not in environ
    length = int(text) if plain else get_content_length(environ)
    if length is None:
        most = max_body + 1
    elif length > max_body:
        raise body_too_large(max_body)
    else:
        most = length
    # gunicorn ends the stream where the body ends. For other servers, werkzeug limits it to the length.
    stream = environ["wsgi.input"] if "wsgi.input_terminated" in environ else get_input_stream(environ)
    try:
        piece = stream.read(min(READ_BYTES, most))
        if len(piece) == length:
            return piece
        body = io.BytesIO(bytes(length or 0))
        while piece:
            body.write(piece)
            piece = stream.read(min(READ_BYTES, most - body.tell()))
    except (HTTPException, ParseException, OSError) as error:
        raise BadInput("the body did not arrive whole, or its chunks are malformed") from error
    if body.tell() > max_body:
        raise body_too_large(max_body)
    body.truncate()
    return body.getvalue()


def read_headers(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the request's headers, with names in lower case."""
    headers = {header: environ[name] for name, header in CGI_HEADERS.items() if environ.get(name)}
    for name in environ:
        if name.startswith("HTTP_") and name not in NOT_HEADERS:
            headers[name[5:].replace("_", "-").lower()] = environ[name]
    return headers


def is_disconnected(connection: socket.socket | None) -> bool:
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
    if answer.headers or answer.on_sent or not isinstance(body, bytes):
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
    if isinstance(answer.body, bytes):
        return responses.respond(answer)
    response = Response(
        answer.body, answer.status, dict(answer.headers) or None, content_type=answer.content_type
    )
    if answer.content_type.startswith(EVENTS):
        response.response = with_final_error(answer.body, request_id(environ))
    # nginx passes each chunk on as it arrives.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(lambda: finish(answer.body))
    return response
