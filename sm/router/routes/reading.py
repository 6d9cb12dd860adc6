"""Read a request from WSGI: its message, and the invocation that it begins."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from gunicorn.http.errors import ParseException
from werkzeug import Request
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import get_content_length, get_input_stream

from sm.deadline import Deadline, running
from sm.errors import BadInput, TooLarge
from sm.http.responses import request_id
from sm.router.invocation import Message
from sm.router.request_log import RequestLog
from sm.router.running import RunningInvocation

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

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
    return Message(
        read_body(environ, max_body),
        read_headers(environ),
        read_query(environ.get("QUERY_STRING", "")),
        request_id(environ),
        model,
        target,
    )


@lru_cache(maxsize=256)  # callers send the same ones again and again
def read_query(query: str) -> Mapping[str, str]:
    """Return the parameters of a WSGI query string, read-only; of several of one name the first."""
    return MappingProxyType(Request({"REQUEST_METHOD": "POST", "QUERY_STRING": query}).args.to_dict())


def read_body(environ: WSGIEnvironment, max_body: int) -> bytes:
    """Read the whole body. Werkzeug would hold a large one in memory twice for a moment."""
    length = get_content_length(environ)
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
    return {
        header: environ[name]
        for name in environ.keys() - SERVER_VARIABLES
        if (header := header_name(name)) and (environ[name] or name not in CGI_HEADERS)
    }


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
    return RunningInvocation(
        requests,
        request_id(environ),
        timeout,
        seconds_waited(environ) if fronted else 0.0,
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
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
