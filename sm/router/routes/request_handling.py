"""Steps that every invocation route shares: read the message, set the deadline, count and log."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from gunicorn.http.errors import ParseException
from werkzeug import Request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import get_content_length, get_input_stream

from sm import metrics
from sm.deadline import Deadline, running
from sm.errors import BadInput
from sm.router.admission import Admission
from sm.router.answer import Answer
from sm.router.invocation import Message
from sm.router.routes.request_log import RequestLog, describe_error
from sm.router.routes.responses import request_id
from sm.router.streaming.stream import Stream

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: Headers with variables of their own in WSGI, and variables that could be mistaken for them.
CGI_HEADERS = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
NOT_HEADERS = frozenset(f"HTTP_{name}" for name in CGI_HEADERS)
#: WSGI variables that are no headers; skipping them as a set is faster than looking at each name.
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
#: Bytes of one read from a body.
READ_BYTES = 2**18
#: The admission of a request that needs no place.
NOT_ADMITTED = Admission(None)


def read_message(environ: WSGIEnvironment, max_body: int, model: str = "") -> Message:
    """Read the request.

    Args:
        environ: Of the request.
        max_body: Bytes of its body, at most.
        model: The model in the path.
    """
    return Message(
        read_body(environ, max_body),
        read_headers(environ),
        read_query(environ.get("QUERY_STRING", "")),
        request_id(environ),
        model,
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
        raise RequestEntityTooLarge
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
    except OSError as error:
        raise BadInput("the body did not arrive whole") from error
    body.truncate()
    return body.getvalue()


def _read_chunks(environ: WSGIEnvironment, max_body: int) -> bytes:
    """Read a body of unknown length."""
    try:
        # One byte more: werkzeug ends a longer body at its limit, and says nothing.
        body = get_input_stream(environ, max_content_length=max_body + 1).read()
    except ParseException as error:
        raise BadInput("the chunks of the body are malformed") from error
    if len(body) > max_body:
        raise RequestEntityTooLarge
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


class RequestRecorder:
    """Counts and logs one invocation when it ends, and gives back its place. It never logs a payload.

    A streamed answer enters the recorder a second time, so that the invocation ends with the stream.
    """

    _entered = 0
    model = "-"
    #: The version that the caller named.
    version = ""
    #: Status, code and reason of an error that Triton answered itself, so that no exception shows it.
    refusal: tuple[int, str, str] | None = None
    #: The request's place.
    admission = NOT_ADMITTED
    #: Bytes of the request's body and of the answer's.
    bytes_in = bytes_out = 0
    #: Records or lines of the request; None if it is no list.
    records: int | None = None
    #: Parts sent of a streamed answer.
    parts: int | None = None

    def __init__(self, request_id: str, api_key_name: str, requests: RequestLog, arrived: str = "") -> None:
        """``arrived``: when nginx had the request, in seconds since 1970; empty if unknown."""
        self._request_id, self._api_key_name = request_id, api_key_name
        self._requests, self._arrived = requests, arrived

    def count_part(self, part: bytes) -> None:
        """Count a part of a streamed answer."""
        self.parts = (self.parts or 0) + 1
        self.bytes_out += len(part)

    def __enter__(self) -> RequestRecorder:
        if not self._entered:
            self._started = time.perf_counter()
            self.stages = metrics.collect_stages()
            metrics.IN_FLIGHT.inc()
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        self.admission.leave()
        metrics.IN_FLIGHT.dec()
        seconds = time.perf_counter() - self._started
        failure = self.refusal if error is None else describe_error(error)
        status = 200 if failure is None else failure[0]
        metrics.invocations(self.model, status).inc()
        metrics.duration(self.model, metrics.TOTAL, status).observe(seconds)
        level = self._requests.level(status, seconds)
        if level:
            self._requests.write(level, self._line(status, failure, seconds))

    def _line(self, status: int, failure: tuple[int, str, str] | None, seconds: float) -> dict[str, object]:
        line: dict[str, object] = {"model": self.model, "status": status}
        if self.version:
            line["version"] = self.version
        if failure is not None:
            _, line["code"], line["reason"] = failure
        line["ms"] = round(seconds * 1000, 2)
        stages = {name: round(1000 * part, 2) for name, part in self.stages.copy().items()}
        line["queue_ms"] = round(_queue_ms(self._arrived, seconds) + stages.pop(metrics.QUEUE, 0.0), 2)
        if stages:
            line["stages_ms"] = stages
        line["bytes_in"] = self.bytes_in
        if self.bytes_out:
            line["bytes_out"] = self.bytes_out
        if self.records is not None:
            line["records"] = self.records
        line["request_id"] = self._request_id
        if self.parts is not None:
            line["parts"] = self.parts
        if self._api_key_name:
            line["api_key_name"] = self._api_key_name
        return line


def _queue_ms(arrived: str, seconds: float) -> float:
    """Return the time from when nginx had the request until a worker took it, ``seconds`` ago."""
    try:
        return max(0.0, 1000 * (time.time() - seconds - float(arrived)))
    except ValueError:
        return 0.0


def api_key_name(environ: WSGIEnvironment, fronted: bool) -> str:
    """Return the name of the API key that nginx found. Without nginx, callers could set the header
    themselves.
    """
    return str(environ.get("HTTP_X_TRIREME_KEY_NAME", "")) if fronted else ""


def arrival(environ: WSGIEnvironment, fronted: bool) -> str:
    """Return when nginx had the request. Without nginx, callers could set the header themselves."""
    return str(environ.get("HTTP_X_TRIREME_START", "")) if fronted else ""


def attach_to_stream(answer: Answer, recorder: RequestRecorder) -> Answer:
    """Let a stream end the recorder when it ends, and count its parts; other answers are unchanged."""
    if isinstance(answer.body, bytes):
        recorder.bytes_out = len(answer.body)
        return answer
    return replace(answer, body=Stream(answer.body, recorder, recorder.count_part))


def within_deadline(environ: WSGIEnvironment, seconds: float, fronted: bool, model: str = "") -> running:
    """Set the deadline of the request that this thread serves. Raises if it has passed already."""
    limit = deadline(environ, seconds, fronted, model)
    limit.check()
    return running(limit)


def deadline(environ: WSGIEnvironment, timeout: float, fronted: bool, model: str = "") -> Deadline:
    """Return the deadline: ``timeout`` seconds after nginx had the request, so it includes the queue."""
    waited = 0.0
    if fronted:
        try:
            waited = max(0.0, time.time() - float(environ.get("HTTP_X_TRIREME_START", "")))
        except ValueError:
            waited = 0.0
    connection = environ.get("gunicorn.socket")
    return Deadline(
        time.monotonic() + timeout - waited,
        lambda: _is_disconnected(connection),
        request_id(environ),
        model,
    )


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
