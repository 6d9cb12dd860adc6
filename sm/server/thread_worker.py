"""A worker behind nginx, of either plane: a thread takes a connection, answers its one request, and ends it.

gunicorn's own worker accepts in its main thread, hands the connection to a thread and takes it back to close
it: for clients that are slow or keep their connections. nginx is neither, and each handing over costs two
switches of the interpreter's lock. The kernel gives connections to those who wait in the order in which they
came, so that workers get equal shares.
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

#: Seconds between two signs of life, between two looks at what still runs, and after a connection that could
#: not be taken for want of descriptors.
BEAT, LOOK, PAUSE = 1.0, 0.02, 0.1
#: Seconds that nginx has to take an answer and hang up while there is more of the body to send: it is told at
#: once, but other work may keep it.
LEAVING = 10.0
#: Bytes of a body up to which copying it is cheaper than a second call.
JOINED = 2**16
UPGRADE = b"HTTP/1.1 101"


class ResponseSocket(socket.socket):
    """Sends the head of an answer together with the first of its body: one call, and nginx wakes once."""

    _head: bytes | None = None
    _begun = False

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        if not self._begun:
            self._begun = True
            # To the head of a conversation the caller has the first word.
            if not data.startswith(UPGRADE):
                self._head = data
                return
        head, self._head = self._head, None
        if head is None:
            super().sendall(data, flags)
        elif len(data) < JOINED:
            super().sendall(head + data, flags)
        else:
            super().sendall(head, flags)
            super().sendall(data, flags)

    def flush(self) -> None:
        """An answer without a body."""
        if self._head is not None:
            self.sendall(b"")


class Connection(NamedTuple):
    """What gunicorn wants to know of one."""

    sock: ResponseSocket
    client: object
    server: object


class Worker(error_responses.Worker):
    """For unix sockets that nobody but nginx connects to, without ``keepalive``."""

    alive: bool

    def run(self) -> None:
        # gunicorn asks its settings 30 times a request; as plain attributes they need no search.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        self._serving: set[int] = set()
        for listener in self.sockets:
            listener.setblocking(True)
            for number in range(self.cfg.threads):
                threading.Thread(
                    target=self._serve, args=(listener.sock,), name=f"serve_{number}", daemon=True
                ).start()
        stopping = self.method_queue.fileno()
        while self.alive and self.is_parent_alive():
            self.notify()
            select.select([stopping], [], [], BEAT)
        self.alive = False
        self._finish()

    def _finish(self) -> None:
        """Wait for what runs. Threads that wait for a connection end with the process."""
        until = time.monotonic() + self.cfg.graceful_timeout
        while self._serving and time.monotonic() < until:
            self.notify()
            time.sleep(LOOK)

    def _serve(self, listener: socket.socket) -> None:
        server, own = listener.getsockname(), threading.get_ident()
        while self.alive:
            try:
                client, address = listener.accept()
            except OSError as error:
                if error.errno not in (errno.ECONNABORTED, errno.EINTR):
                    time.sleep(PAUSE)
                continue
            self._serving.add(own)
            client = ResponseSocket(client.family, client.type, client.proto, client.detach())
            try:
                self._answer(Connection(client, address, server))
            finally:
                self._serving.discard(own)

    def _answer(self, connection: Connection) -> None:
        """Whatever comes of the request, the connection ends."""
        request = None
        try:
            request = next(RequestParser(self.cfg, connection.sock, connection.client))
            self.handle_request(request, connection)
        except (StopIteration, NoMoreData, BrokenPipeError, ConnectionResetError):
            pass  # nginx has left, or the answer is as whole as it gets
        except BaseException as error:  # a client may say sys.exit: this thread has to go on
            self.handle_error(request, connection.sock, connection.client, error)
        finally:
            with contextlib.suppress(OSError):
                connection.sock.flush()
            if read_to_end(request):
                connection.sock.close()
            else:
                close_graceful(connection.sock, LEAVING, sys.maxsize)


def read_to_end(request: Request | None) -> bool:
    """Whether nginx has nothing more to send: if it has, closing right away would take the answer back."""
    reader = request.body.reader if request else None
    return isinstance(reader, LengthReader) and reader.length == 0
