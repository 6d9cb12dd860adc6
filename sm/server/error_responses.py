"""JSON error responses for requests that gunicorn cannot parse."""

from __future__ import annotations

import contextlib
import errno
import http
import logging
import socket
import struct
import uuid

from gunicorn.http import errors
from gunicorn.http.parser import RequestParser
from gunicorn.util import close_graceful, write_nonblock
from gunicorn.workers.gthread import TConn, ThreadWorker

from sm.errors import BadInput, ClientFailed, TriremeError, Unsupported
from sm.messages import JSON, write_error
from sm.server.timed_requests import TimedReader

log = logging.getLogger(__name__)

#: gunicorn's parse errors that the caller did not cause.
SERVER_ERRORS = (errors.InvalidResponseHeader, errors.InvalidResponseHeaderName, errors.ConfigurationProblem)


class RequestTooLong(BadInput):
    """The first line is longer than gunicorn's limit."""

    status = 414


class HeadersTooLong(BadInput):
    """The headers are longer than gunicorn's limit."""

    status = 431


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
