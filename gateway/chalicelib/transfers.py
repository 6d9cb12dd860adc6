"""Calls to S3 that end with the request that needs them.

Calls run in threads of their own. boto3 limits the time between two bytes, not the time of a whole answer: an
S3 that sends a byte every few seconds would hold a thread for hours. So the waiting thread shuts the
connection down.
"""

from __future__ import annotations

import contextvars
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, wait
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from sm.errors import NotReady
from sm.invocation import current

#: Seconds between two checks whether the caller still waits.
POLL_INTERVAL_S = 0.2
T = TypeVar("T")
#: Protects the transfer of each connection.
_lock = threading.Lock()


class Transfer:
    """One call to S3 and the connections that it uses."""

    def __init__(self) -> None:
        self._is_aborted = False
        self._connections: list[tuple[Any, socket.socket]] = []

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call``. The connections that it uses report to this transfer."""
        token = _current.set(self)
        try:
            return call()
        finally:
            _current.reset(token)
            self._forget_connections()

    def watch(self, connection: Any, connected: socket.socket) -> None:
        """Add a connection that the transfer uses. Raises :class:`CancelledError` if it was aborted."""
        with _lock:
            if self._is_aborted:
                raise CancelledError
            connection.transfer = self
            # Duplicate the descriptor: the reading thread may close it, and its number may be used again.
            handle = socket.socket(fileno=os.dup(connected.fileno()))
            self._connections.append((connection, handle))

    def abort(self) -> None:
        """Shut its connections down, so that their readers return at once, and allow no new one."""
        with _lock:
            self._is_aborted = True
            for connection, handle in self._connections:
                # A pooled connection may serve another transfer by now.
                if connection.transfer is self:
                    with suppress(OSError):
                        handle.shutdown(socket.SHUT_RDWR)

    def _forget_connections(self) -> None:
        with _lock:
            for _, handle in self._connections:
                handle.close()
            self._connections = []


_current: ContextVar[Transfer | None] = ContextVar("transfer", default=None)


class WatchedConnection:
    """Reports each socket that it opens, and each request on an open one, to the running transfer."""

    sock: socket.socket | None
    transfer: object = None

    def _new_conn(self) -> socket.socket:
        new: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            self._report(new)
        except BaseException:
            new.close()
            raise
        return new

    def request(self, *args: Any, **options: Any) -> Any:
        if self.sock is not None:
            self._report(self.sock)
        return super().request(*args, **options)  # type: ignore[misc]

    def _report(self, connected: socket.socket) -> None:
        transfer = _current.get()
        if transfer is not None:
            transfer.watch(self, connected)


def watch_connections(client: Any) -> None:
    """Make the boto3 ``client`` use watched connections, once. Botocore has no public way to do so."""
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in list(pools.items()):
        if not issubclass(pool.ConnectionCls, WatchedConnection):
            connection = type("Watched", (WatchedConnection, pool.ConnectionCls), {})
            pools[scheme] = type("WatchedPool", (pool,), {"ConnectionCls": connection})


class Transfers:
    """Runs calls on ``executor``, each for at most ``timeout_s`` and never longer than its invocation.

    ``executor`` must not be the one that records run on.
    """

    def __init__(self, executor: Executor, timeout_s: float) -> None:
        self._executor, self._timeout_s = executor, timeout_s

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in another thread and wait for it.

        Raises:
            DeadlinePassed: The invocation's time is over.
            CallerGone: The caller disconnected.
            NotReady: S3 takes longer than ``timeout_s``.
        """
        limit, ends_at = current(), time.monotonic() + self._timeout_s
        transfer = Transfer()
        running = self._executor.submit(contextvars.copy_context().run, transfer.run, call)
        try:
            while True:
                seconds = min(POLL_INTERVAL_S, ends_at - time.monotonic())
                if limit is not None:
                    seconds = min(seconds, limit.remaining())
                if wait([running], max(0.0, seconds)).done:
                    return running.result()
                if limit is not None:
                    limit.check()
                if time.monotonic() >= ends_at:
                    raise NotReady(f"S3 has taken longer than {self._timeout_s:g} s for one object")
        finally:
            if not running.done():
                transfer.abort()
                running.cancel()
