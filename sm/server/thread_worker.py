"""gunicorn's threaded worker: with JSON error responses, and its form behind nginx."""

from __future__ import annotations

import contextlib
import errno
import http
import io
import logging
import re
import select
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from gunicorn.http import errors
from gunicorn.http.body import Body, LengthReader
from gunicorn.http.errors import NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.http.wsgi import HEADER_VALUE_RE, Response
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
from sm.http.responses import HEADERS_KEY
from sm.plugins.stuck_code import abandoned
from sm.polling import POLL_S

log = logging.getLogger(__name__)

#: gunicorn's parse errors that the caller did not cause.
SERVER_ERRORS = (errors.InvalidResponseHeader, errors.InvalidResponseHeaderName, errors.ConfigurationProblem)


class RequestTooLong(BadInput):
    """The first line is longer than gunicorn's limit."""

    status = 414


class DirectWorker(ThreadWorker):  # type: ignore[misc]
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
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(seconds))


@lru_cache
def timeval(seconds: float) -> bytes:
    """Return seconds as the kernel has them."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


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


#: Seconds between two heartbeats, and after a connection that could not be accepted for lack of descriptors.
HEARTBEAT_INTERVAL_S, RETRY_PAUSE_S = 5.0, 0.1
#: Seconds that nginx gets to read an answer and close, if it has not sent the whole body.
LINGER_TIMEOUT_S = 10.0
#: Bytes of a body up to which copying it is cheaper than a second system call.
MAX_JOINED_BYTES = 2**16


#: The head of a POST as nginx writes it. gunicorn's parser takes ten times as long: it reads, or
#: refuses, all others: those with a field of :data:`UNPLAIN`, twice the same field, or a longer head.
PLAIN_HEAD = re.compile(
    rb"POST (/[A-Za-z0-9./_~:-]*)(\?[!\"$-~]*)? HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9-]+: [!-~\x80-\xff][ -~\x80-\xff]*(?<! )\r\n)+)\r\n"
)
FIELD = re.compile("([^:]+): (.+)\r\n")
UNPLAIN = frozenset(
    "transfer-encoding expect upgrade x-forwarded-proto x-forwarded-protocol x-forwarded-ssl".split()  # noqa: SIM905
)
#: Bytes and fields of a plain head: gunicorn's limits of a line, and of fields. Bytes of the first read.
PLAIN_BYTES, PLAIN_FIELDS, RECEIVE_BYTES = 4094, 100, 2**16
#: The variables of every plain request.
PLAIN_ENVIRON: dict[str, Any] = {
    "REQUEST_METHOD": "POST",
    "SCRIPT_NAME": "",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.url_scheme": "http",
    "REMOTE_ADDR": "",
    "SERVER_NAME": "localhost",
    "SERVER_PORT": "80",
    "wsgi.errors": sys.stderr,
    "wsgi.version": (1, 0),
    "wsgi.input_terminated": True,
    "wsgi.run_once": False,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
}
#: The body of a request that came with its head, and what gunicorn's response reads of a plain request.
WHOLE = LengthReader(None, 0)
PLAIN_REQUEST = SimpleNamespace(method="POST", version=(1, 1), should_close=lambda: True)


class PlainRequest(NamedTuple):
    """A request whose head is a :data:`PLAIN_HEAD`."""

    environ: dict[str, Any]
    #: Bytes of the body, and those of it that came with the head.
    length: int
    body: bytes


def read_plain(received: bytes) -> PlainRequest | None:
    """Read a plain head; None if gunicorn has to read it."""
    match = PLAIN_HEAD.match(received, 0, PLAIN_BYTES)
    if match is None:
        return None
    path, query = match[1].decode(), (match[2] or b"").decode()
    names, values = zip(*FIELD.findall(match[3].decode("latin-1")), strict=True)
    headers = dict(zip(map(str.lower, names), values, strict=True))
    length = headers.get("content-length", "")
    count = len(names)
    if (
        count != len(headers)
        or count > PLAIN_FIELDS
        or not UNPLAIN.isdisjoint(headers)
        or not length.isdecimal()
    ):
        return None
    environ = {
        **PLAIN_ENVIRON,
        **dict(zip(map(variable_of, names), values, strict=True)),
        "PATH_INFO": path,
        "QUERY_STRING": query[1:],
        "RAW_URI": path + query,
        HEADERS_KEY: headers,
    }
    return PlainRequest(environ, int(length), received[match.end() :])


@lru_cache(maxsize=1024)  # callers send the same few fields
def variable_of(name: str) -> str:
    """Return the WSGI variable of a header."""
    variable = name.upper().replace("-", "_")
    return variable if variable in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{variable}"


class CallerConnection(NamedTuple):
    """The attributes of a connection that gunicorn reads."""

    sock: socket.socket
    client: object
    server: object


#: Threads that wait for connections while others are busy: with one, each connection would start a thread.
MIN_IDLE_THREADS = 2


class ThreadCount:
    """Threads of a worker, of which at most ``idle`` wait for a connection."""

    def __init__(self, idle: int, max_threads: int) -> None:
        self.idle, self.total, self._max_idle, self._max = idle, idle, idle, max_threads
        self._lock = threading.Lock()

    def take_connection(self) -> bool:
        """Return True, and count a new thread, if no other thread waits for the next connection."""
        with self._lock:
            self.idle -= 1
            if self.idle or self.total >= self._max:
                return False
            self.idle += 1
            self.total += 1
            return True

    def remove_thread(self) -> None:
        """Remove a waiting thread from the count."""
        with self._lock:
            self.idle -= 1
            self.total -= 1

    def finish_request(self) -> bool:
        """Count a thread as waiting again. Returns True if it should end instead, as enough others wait."""
        with self._lock:
            # The busier a worker, the fewer of its threads wait: idle workers get the next connections.
            busy = self.total - self.idle - 1
            if self.idle >= max(MIN_IDLE_THREADS, self._max_idle - busy):
                self.total -= 1
                return True
            self.idle += 1
            return False


class Worker(DirectWorker):
    """gunicorn's worker for a Unix socket to which only nginx connects, without ``keepalive``.

    A thread accepts a connection, answers one request, and closes it. gunicorn's own worker accepts in its
    main thread, passes the connection to a thread and takes it back to close it. That is for clients that are
    slow or keep their connections. nginx is neither, and each passing costs two switches of the interpreter's
    lock. The kernel serves the waiting threads in the order in which they came, so the workers get equal
    shares.

    Most requests wait, for their model's turn or for Triton. So one thread always waits for the next
    connection: when the last waiting thread gets one, it starts another, up to gunicorn's ``threads``.
    """

    alive: bool
    #: Threads that may wait for connections; further ones end after their answer. 0: no limit.
    idle_threads = 0

    def run(self) -> None:
        # gunicorn reads its settings 30 times a request; plain attributes need no search.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        self._serving: set[int] = set()
        for listener in self.sockets:
            listener.setblocking(True)
            count = ThreadCount(self.idle_threads or self.cfg.threads, self.cfg.threads)
            for _ in range(count.idle):
                self._start_thread(listener.sock, count)
        stopping = self.method_queue.fileno()
        while self.alive and self.is_parent_alive():
            self.notify()
            select.select([stopping], [], [], HEARTBEAT_INTERVAL_S)
        self.alive = False
        self._finish()

    def _finish(self) -> None:
        """Wait for running requests. Threads that wait for a connection end with the process."""
        end = time.monotonic() + self.cfg.graceful_timeout
        while self._serving - abandoned and time.monotonic() < end:
            self.notify()
            time.sleep(POLL_S)

    def _start_thread(self, listener: socket.socket, count: ThreadCount) -> None:
        threading.Thread(target=self._serve, args=(listener, count), name="serve", daemon=True).start()

    def _serve(self, listener: socket.socket, count: ThreadCount) -> None:
        server, thread_id = listener.getsockname(), threading.get_ident()
        while self.alive:
            try:
                client, address = listener.accept()
            except OSError as error:
                if error.errno not in (errno.ECONNABORTED, errno.EINTR):
                    time.sleep(RETRY_PAUSE_S)
                continue
            self._serving.add(thread_id)
            limit_sending(client, self.send_timeout_s)
            try:
                if count.take_connection():
                    try:
                        self._start_thread(listener, count)
                    except RuntimeError:  # the system allows no further thread; the others go on
                        count.remove_thread()
                self._answer(CallerConnection(client, address, server))
            finally:
                self._serving.discard(thread_id)
            if count.finish_request():
                return

    def _answer(self, connection: CallerConnection) -> None:
        """Answer one request and close the connection, whatever happens to the request."""
        reader: object = None
        try:
            received = connection.sock.recv(RECEIVE_BYTES)
            if plain := read_plain(received):
                environ, length, body = plain
                if len(body) < length:
                    unreader = SocketUnreader(connection.sock)
                    unreader.unread(body)
                    reader = LengthReader(unreader, length)
                    environ["wsgi.input"] = Body(reader)
                else:
                    reader, environ["wsgi.input"] = WHOLE, io.BytesIO(body[:length])
                self._answer_plain(environ, connection.sock)
            else:
                parser = RequestParser(self.cfg, connection.sock, connection.client)
                parser.unreader.unread(received)
                request = next(parser)
                reader = request.body.reader
                self.handle_request(request, connection)
        except (StopIteration, NoMoreData, BrokenPipeError, ConnectionResetError, BlockingIOError):
            pass  # nginx has closed the connection, so there is nobody to answer
        except BaseException as error:  # a client may call sys.exit, and this thread must go on
            self.handle_error(None, connection.sock, connection.client, error)
        finally:
            if isinstance(reader, LengthReader) and reader.length == 0:  # nginx has nothing more to send
                connection.sock.close()
            else:  # closing at once would discard the answer
                close_graceful(connection.sock, LINGER_TIMEOUT_S, sys.maxsize)

    def _answer_plain(self, environ: dict[str, Any], connection: socket.socket) -> None:
        """Answer a request that gunicorn has not parsed; gunicorn writes what is not one piece."""
        begun: list[Any] = []
        environ["gunicorn.socket"] = connection
        parts = self.wsgi(environ, lambda *given: begun.extend(given))
        status, headers = begun[:2]
        response: Any = None
        try:
            if isinstance(parts, tuple) and all(HEADER_VALUE_RE.fullmatch(value) for _, value in headers):
                fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
                head = f"HTTP/1.1 {status}\r\nConnection: close\r\n{fields}\r\n".encode("latin-1")
                body = b"".join(parts)
                # Together, so that nginx wakes up once.
                for piece in (head + body,) if len(body) < MAX_JOINED_BYTES else (head, body):
                    connection.sendall(piece)
                return
            response = Response(PLAIN_REQUEST, connection, self.cfg)
            response.start_response(status, headers)
            for part in parts:
                response.write(part)
            response.close()
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) or response is None or not response.headers_sent:
                raise
            log.exception("an answer broke off")
        finally:
            if hasattr(parts, "close"):
                parts.close()
