"""JSON error responses for requests that gunicorn cannot parse."""

from __future__ import annotations

import contextlib
import errno
import http
import logging
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable

from gunicorn.http import errors
from gunicorn.http.parser import RequestParser
from gunicorn.util import close_graceful, write_nonblock
from gunicorn.workers.gthread import TConn, ThreadWorker

from sm.errors import (
    BadInput,
    ClientFailed,
    HeadersTooLong,
    RequestTimeout,
    TriremeError,
    Unsupported,
)
from sm.http.messages import JSON, write_error

log = logging.getLogger(__name__)

#: gunicorn's parse errors that the caller did not cause.
SERVER_ERRORS = (errors.InvalidResponseHeader, errors.InvalidResponseHeaderName, errors.ConfigurationProblem)


class RequestTooLong(BadInput):
    """The first line is longer than gunicorn's limit."""

    status = 414


class Worker(ThreadWorker):  # type: ignore[misc]
    """gunicorn's threaded worker with JSON error responses, and limits on the time to receive and to send."""

    #: Seconds for a request's head, and for each piece of its body.
    receive_timeout_s = 10.0
    #: Seconds for each piece of a response.
    send_timeout_s = 20.0

    def handle(self, conn: TConn) -> object:
        """Answer a connection's next request, in a thread."""
        if conn.parser is None:
            conn.parser = RequestParser(self.cfg, TimedReader(conn.sock, self.receive_timeout_s), conn.client)
        conn.parser.unreader.sock.begin_request()
        limit_sending(conn.sock, self.send_timeout_s)
        is_kept = super().handle(conn)
        if not is_kept:
            wait_for_close(conn.sock)
        return is_kept

    def handle_request(self, req: object, conn: TConn) -> object:
        """Answer a request. A caller that takes nothing counts as one that has closed its connection."""
        try:
            return super().handle_request(req, conn)
        except BlockingIOError:
            raise BrokenPipeError(errno.EPIPE, "the caller takes nothing") from None

    def handle_error(
        self, _request: object, client: socket.socket, _address: object, exc: BaseException
    ) -> None:
        error = to_error(exc)
        if error.status >= 500:
            log.error("the router failed outside its application", exc_info=exc)
        with contextlib.suppress(OSError):
            write_nonblock(client, response(error))


def limit_sending(connection: socket.socket, seconds: float) -> None:
    """Let a send that makes no progress for ``seconds`` raise :class:`BlockingIOError`."""
    interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


def wait_for_close(connection: socket.socket) -> None:
    """Give a caller time to read the answer and close.

    gunicorn would wait in its main thread, and accept nobody meanwhile.
    """
    with contextlib.suppress(OSError):
        close_graceful(connection.dup())
        connection.shutdown(socket.SHUT_RDWR)


def to_error(error: BaseException) -> TriremeError:
    """Return the error for a request that never reached the application."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, errors.LimitRequestLine):
        return RequestTooLong("the URL is too long")
    if isinstance(error, errors.LimitRequestHeaders):
        return HeadersTooLong("the headers are too large")
    if isinstance(error, errors.UnsupportedTransferCoding):
        return Unsupported("the transfer coding is not supported")
    if isinstance(error, errors.ParseException) and not isinstance(error, SERVER_ERRORS):
        return BadInput("the request is malformed")
    return ClientFailed("the router failed")


def response(error: TriremeError) -> bytes:
    """Return the complete response, after which the connection closes."""
    request_id = uuid.uuid4().hex
    body = write_error(error, request_id).read()
    head = (
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
        f"Connection: close\r\nX-Request-Id: {request_id}\r\n"
        f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


#: Bytes a second of a request on average, at least: 128 kbit/s. A body of 25 MiB may take 27 minutes.
MIN_RATE = 16384


class TimedReader:
    """Reads a connection's requests, as gunicorn's parser expects it of a socket.

    Args:
        connection: The socket.
        timeout_s: Seconds for each piece, and for the whole request plus what :data:`MIN_RATE` allows.
        clock: Monotonic seconds.
    """

    def __init__(
        self, connection: socket.socket, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._timeout_s, self._clock = connection, timeout_s, clock
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._drain_timeout_s: float | None = None
        self.begin_request()

    def begin_request(self) -> None:
        """Start the time of the next request."""
        self._began, self._received = self._clock(), 0

    def recv(self, size: int) -> bytes:
        """Receive up to ``size`` bytes. Raises :class:`RequestTimeout`."""
        allowed = self._timeout_s + self._received / MIN_RATE
        remaining = min(self._timeout_s, self._began + allowed - self._clock())
        if self._drain_timeout_s is not None:
            remaining = min(remaining, self._drain_timeout_s)
        if remaining <= 0 or not self._poll.poll(1000 * remaining):
            if self._drain_timeout_s is not None:
                raise TimeoutError
            raise RequestTimeout(
                f"the request did not arrive in time: {self._received:,} bytes came in "
                f"{self._clock() - self._began:.0f} s; send it faster, or in smaller bodies"
            )
        data = self._connection.recv(size)
        self._received += len(data)
        return data

    def gettimeout(self) -> float | None:
        """Return what :meth:`settimeout` set."""
        return self._drain_timeout_s

    def settimeout(self, seconds: float | None) -> None:
        """Limit each read. gunicorn does so when it discards the body of a request that it has answered."""
        self._drain_timeout_s = seconds
