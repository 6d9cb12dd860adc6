"""A worker behind nginx, of either plane: a thread accepts a connection, answers one request, and closes it.

gunicorn's own worker accepts in its main thread, passes the connection to a thread and takes it back to close
it. That is for clients that are slow or keep their connections. nginx is neither, and each passing costs two
switches of the interpreter's lock. The kernel serves the waiting threads in the order in which they came, so
the workers get equal shares.

Most requests wait, for their model's turn or for Triton. So one thread always waits for the next connection:
when the last waiting thread gets one, it starts another thread, up to gunicorn's ``threads``.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import sys
import threading
import time
from typing import NamedTuple

from gunicorn.http.body import LengthReader
from gunicorn.http.errors import NoMoreData
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.util import close_graceful

from sm.server import error_responses

#: Seconds between two heartbeats, between two checks of what still runs, and after a connection that could
#: not be accepted for lack of descriptors.
HEARTBEAT_INTERVAL_S, POLL_INTERVAL_S, RETRY_PAUSE_S = 1.0, 0.02, 0.1
#: Seconds that nginx gets to read an answer and close, if it has not sent the whole body.
LINGER_TIMEOUT_S = 10.0
#: Bytes of a body up to which copying it is cheaper than a second system call.
MAX_JOINED_BYTES = 2**16
UPGRADE = b"HTTP/1.1 101"


class ResponseSocket(socket.socket):
    """Sends the head of an answer together with the first part of its body, so that nginx wakes up once."""

    _head: bytes | None = None
    _head_seen = False

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        if not self._head_seen:
            self._head_seen = True
            # After the head of a WebSocket upgrade the caller sends first, so the head must not wait.
            if not data.startswith(UPGRADE):
                self._head = data
                return
        head, self._head = self._head, None
        if head is None:
            super().sendall(data, flags)
        elif len(data) < MAX_JOINED_BYTES:
            super().sendall(head + data, flags)
        else:
            super().sendall(head, flags)
            super().sendall(data, flags)

    def flush(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head is not None:
            self.sendall(b"")


class Connection(NamedTuple):
    """The attributes of a connection that gunicorn reads."""

    sock: ResponseSocket
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


class Worker(error_responses.Worker):
    """gunicorn's worker for a Unix socket to which only nginx connects, without ``keepalive``."""

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
        while self._serving and time.monotonic() < end:
            self.notify()
            time.sleep(POLL_INTERVAL_S)

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
            client = ResponseSocket(client.family, client.type, client.proto, client.detach())
            error_responses.limit_sending(client, self.send_timeout_s)
            try:
                if count.take_connection():
                    try:
                        self._start_thread(listener, count)
                    except RuntimeError:  # the system allows no further thread; the others go on
                        count.remove_thread()
                self._answer(Connection(client, address, server))
            finally:
                self._serving.discard(thread_id)
            if count.finish_request():
                return

    def _answer(self, connection: Connection) -> None:
        """Answer one request and close the connection, whatever happens to the request."""
        request = None
        try:
            request = next(RequestParser(self.cfg, connection.sock, connection.client))
            self.handle_request(request, connection)
        except (StopIteration, NoMoreData, BrokenPipeError, ConnectionResetError):
            pass  # nginx has closed the connection, so there is nobody to answer
        except BaseException as error:  # a client may call sys.exit, and this thread must go on
            self.handle_error(request, connection.sock, connection.client, error)
        finally:
            with contextlib.suppress(OSError):
                connection.sock.flush()
            if read_to_end(request):
                connection.sock.close()
            else:
                close_graceful(connection.sock, LINGER_TIMEOUT_S, sys.maxsize)


def read_to_end(request: Request | None) -> bool:
    """Return True if nginx has nothing more to send; otherwise closing at once would discard the answer."""
    reader = request.body.reader if request else None
    return isinstance(reader, LengthReader) and reader.length == 0
