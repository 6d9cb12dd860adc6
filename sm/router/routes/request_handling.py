"""What every invocation route needs: the message, the deadline, the line in the log."""

from __future__ import annotations

import io
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from sm import metrics
from sm.deadline import Deadline, running
from sm.errors import BadInput, CallerGone, TriremeError
from sm.router.answer import Answer
from sm.router.invocation import Message
from sm.router.routes.responses import request_id
from sm.router.streaming.stream import Stream

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

log = logging.getLogger(__name__)

#: Headers that have variables of their own in WSGI, and what would be mistaken for them.
CGI_HEADERS = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
#: Bytes of a body that are asked for at a time.
READ_BYTES = 2**18
NOT_HEADERS = frozenset(f"HTTP_{name}" for name in CGI_HEADERS)


def read_message(incoming: Request, model: str = "") -> Message:
    """``model``: the one that the path names."""
    return Message(
        body=read_body(incoming),
        headers=read_headers(incoming.environ),
        query=incoming.args.to_dict() if incoming.query_string else {},
        request_id=request_id(incoming.environ),
        model=model,
    )


def read_body(incoming: Request) -> bytes:
    """All of it, and once: Flask would have it in memory twice for a moment."""
    length, most = incoming.content_length, incoming.max_content_length
    if length is None:
        return incoming.get_data(cache=False)
    if most is not None and length > most:
        raise RequestEntityTooLarge
    whole = io.BytesIO(bytes(length))
    try:
        while piece := incoming.input_stream.read(min(READ_BYTES, length - whole.tell())):
            whole.write(piece)
    except OSError as error:
        raise BadInput("the body did not arrive whole") from error
    whole.truncate()
    return whole.getvalue()


def read_headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """The request's, names in lower case: from where WSGI puts them, as Flask writes each name twice anew."""
    found = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in NOT_HEADERS
    }
    found.update((header, environ[name]) for name, header in CGI_HEADERS.items() if environ.get(name))
    return found


class RequestRecorder:
    """One invocation: what is known of it only while it is served, counted and logged when it is left.

    Never its payload. A stream enters it again, and leaves it last.
    """

    def __init__(self, request_id: str, api_key_name: str = "") -> None:
        self._request_id, self._api_key_name = request_id, api_key_name
        self._entered = 0
        self.model = "-"
        #: Of a streamed answer: how many were sent.
        self.parts: int | None = None

    def count_part(self) -> None:
        """Count a part."""
        self.parts = (self.parts or 0) + 1

    def __enter__(self) -> RequestRecorder:
        if not self._entered:
            self._started = time.perf_counter()
            metrics.IN_FLIGHT.inc()
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        metrics.IN_FLIGHT.dec()
        seconds, status = time.perf_counter() - self._started, status_of(error)
        metrics.invocations(self.model, status).inc()
        metrics.observe(metrics.seconds(self.model), seconds)
        line: dict[str, object] = {
            "model": self.model,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "request_id": self._request_id,
        }
        if self.parts is not None:
            line["parts"] = self.parts
        if self._api_key_name:
            line["api_key_name"] = self._api_key_name
        log.info("invocation", extra=line)


def api_key_name(environ: WSGIEnvironment, fronted: bool) -> str:
    """Whose API key nginx has found in the request. Without nginx the header is any caller's to set."""
    return str(environ.get("HTTP_X_TRIREME_KEY_NAME", "")) if fronted else ""


def status_of(error: BaseException | None) -> int:
    """What an invocation that ended so is counted as."""
    if error is None:
        return 200
    if isinstance(error, GeneratorExit):
        # A stream that nobody wanted to the end.
        return CallerGone.status
    return error.status if isinstance(error, TriremeError) else 500


def attach_to_stream(answer: Answer, seen: RequestRecorder) -> Answer:
    """``answer``; ``seen`` is left at its end, which for a stream is yet to come."""
    if isinstance(answer.body, bytes):
        return answer
    return replace(answer, body=Stream(answer.body, seen, seen.count_part))


def within_deadline(environ: WSGIEnvironment, seconds: float, fronted: bool) -> running:
    """Serve a request within ``seconds``, if they are not over yet."""
    limit = deadline(environ, seconds, fronted)
    limit.check()
    return running(limit)


def deadline(environ: WSGIEnvironment, timeout: float, fronted: bool) -> Deadline:
    """``timeout`` seconds from when nginx had the request: time in the queue is not given twice."""
    waited = 0.0
    if fronted:
        try:
            waited = max(0.0, time.time() - float(environ.get("HTTP_X_TRIREME_START", "")))
        except ValueError:
            waited = 0.0
    connection = environ.get("gunicorn.socket")
    return Deadline(
        time.monotonic() + timeout - waited, lambda: _is_disconnected(connection), request_id(environ)
    )


def _is_disconnected(connection: socket.socket | None) -> bool:
    """Whether the peer closed: a peek that reads an end of file."""
    if connection is None:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
