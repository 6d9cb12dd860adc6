"""The ports: choose them, hold the public one from start to end, and answer there while no server does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from sm.errors import NotReady, StartError, error_body
from sm.settings import PORT_SETTINGS, Settings, names_of

#: Connections that the kernel queues for the next accept (it caps this at net.core.somaxconn).
BACKLOG = 4096
LOOPBACK = "127.0.0.1"
EVERYWHERE, ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104


def listen(port: int, variable: str = "SAGEMAKER_BIND_TO_PORT") -> socket.socket:
    """Open a public port, which the environment ``variable`` sets.

    The supervisor keeps it open, and the front inherits it: connections wait in the kernel's queue while the
    front restarts or stops.
    """
    family = socket.AF_INET6 if public_address() == ANY_IPV6 else socket.AF_INET
    try:
        # On an IPv6 address, IPv4 callers are served too.
        listener = socket.create_server(
            (public_address(), port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        # create_server adds the address to the system's own words.
        reason = os.strerror(error.errno or 0)
        raise StartError(
            f"Port {port} cannot be opened ({reason}): stop what listens there, or set {variable}."
        ) from error
    listener.setblocking(False)
    return listener


@functools.cache
def public_address() -> str:
    """Return the address of the public ports: IPv6's, which takes IPv4 callers too, where the host has it."""
    with contextlib.suppress(OSError, ValueError):
        socket.create_server((ANY_IPV6, 0), family=socket.AF_INET6, dualstack_ipv6=True).close()
        return ANY_IPV6
    return EVERYWHERE


def bind_workers(path: Path) -> socket.socket:
    """Bind the socket of the router's workers, on which gunicorn listens.

    The supervisor keeps it open: the front's requests wait in the kernel's queue while gunicorn restarts.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    return sock


def choose_ports(settings: Settings) -> tuple[int, int, int]:
    """Choose Triton's HTTP, gRPC and metrics ports: those that are set, else free ones."""
    requested = settings.requested_ports
    used = {settings.port, *filter(None, (settings.tls and settings.tls_port, *requested))}
    for field, port in zip(PORT_SETTINGS, requested, strict=True):
        if port:
            _check_free(settings, names_of(field)[0], port)
    low, high = settings.safe_ports or (0, 0)
    # Port 0 is the kernel's choice. Each port stays bound until all are chosen.
    candidates = iter(range(low, high + 1)) if settings.safe_ports else itertools.repeat(0)
    with contextlib.ExitStack() as bound:

        def free_port() -> int:
            for candidate in candidates:
                if candidate not in used and (sock := _bind(candidate)):
                    port: int = bound.enter_context(sock).getsockname()[1]
                    if port not in used:
                        return port
            raise StartError(f"SAGEMAKER_SAFE_PORT_RANGE={low}-{high} has too few free ports for Triton.")

        http, grpc, metrics = [port or free_port() for port in requested]
    return http, grpc, metrics


def _check_free(settings: Settings, variable: str, port: int) -> None:
    """Raise :class:`StartError` if the port that a setting names is not free."""
    sock = _bind(port, EVERYWHERE if settings.triton_is_open else LOOPBACK)
    if sock is None:
        raise StartError(
            f"Port {port} cannot be opened for Triton: stop what listens there, or set {variable} to one "
            "that is free."
        )
    sock.close()


def _bind(port: int, address: str = LOOPBACK) -> socket.socket | None:
    """Return a socket bound to the port; None if the port is not free."""
    sock = socket.socket()
    # Triton sets it too: a connection of an earlier run in TIME_WAIT does not block the port.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
    except OSError:
        sock.close()
        return None
    return sock


def handle_events(selector: BaseSelector, seconds: float) -> bool:
    """Wait for events and handle them. Returns False if there were none in time."""
    registered = selector.get_map()
    events = selector.select(seconds)
    for key, _ in events:
        # An earlier event of this round may have closed this file.
        if registered.get(key.fd) is key:
            key.data()
    return bool(events)


#: Connections that are answered at once; further ones wait in the kernel's queue.
MAX_CONNECTIONS = 256
#: Seconds between two accepts: callers that retry at once must not use the processor time that the last
#: requests need.
ACCEPT_PAUSE_S = 0.05
#: Seconds for the last callers to read their answer.
READ_GRACE_S = 0.5
#: Seconds that a caller gets to finish sending its request, which is discarded.
CLIENT_TIMEOUT_S = 1.0


class UnavailableResponder:
    """Answers callers in the supervisor's event loop.

    Args:
        listener: The public port.
        selector: The loop's.
        reason: Returns the sentence for them.
        context: Returns the server's TLS context, at the port with TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        reason: Callable[[], str],
        context: Callable[[], ssl.SSLContext] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._selector, self._reason = listener, selector, reason
        self._context, self._clock = context, clock
        self._connections: dict[socket.socket, float] = {}
        self._next_accept = 0.0

    def serve(self, active: bool) -> None:
        """Accept and answer callers if ``active``, and drop slow ones; to be called often."""
        now = self._clock()
        for connection in [connection for connection, until in self._connections.items() if now >= until]:
            self._close_connection(connection)
        if active and now >= self._next_accept:
            self._next_accept = now + ACCEPT_PAUSE_S
            # nginx accepts a connection with its first bytes. One that waits for them in the kernel would be
            # reset when the port closes.
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 0)
            for connection in self._accept():
                self._answer(connection)

    @property
    def busy(self) -> bool:
        return bool(self._connections)

    def finish(self) -> None:
        """Give the last callers a moment to read their answer."""
        end = time.monotonic() + READ_GRACE_S
        while self.busy and time.monotonic() < end:
            self.serve(active=False)
            handle_events(self._selector, ACCEPT_PAUSE_S)

    def close(self) -> None:
        """Close the port, then answer the callers that had connected before."""
        waiting = self._accept()
        self._listener.close()
        for connection in waiting:
            self._answer(connection)

    def _accept(self) -> list[socket.socket]:
        accepted: list[socket.socket] = []
        while len(accepted) + len(self._connections) < MAX_CONNECTIONS:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            accepted.append(connection)
        return accepted

    def _answer(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        handle = self._read
        if self._context:
            handle = self._continue_handshake
            try:
                connection = self._context().wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            except OSError:
                connection.close()
                return
        self._connections[connection] = self._clock() + CLIENT_TIMEOUT_S
        self._selector.register(connection, EVENT_READ, partial(handle, connection))
        if not self._context:
            self._send(connection)

    def _continue_handshake(self, connection: socket.socket) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            return
        except OSError:
            self._close_connection(connection)
            return
        self._selector.modify(connection, EVENT_READ, partial(self._read, connection))
        self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.send(unavailable_response(self._reason()))
        if isinstance(connection, ssl.SSLSocket):
            with contextlib.suppress(OSError):
                connection.unwrap()  # sends the end of the TLS stream, and does not wait for the caller's
        with contextlib.suppress(OSError):
            # The sending side only: a full close now would reset the connection before the answer is read.
            connection.shutdown(socket.SHUT_WR)

    def _read(self, connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close_connection(connection)

    def _close_connection(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._connections[connection]


def unavailable_response(reason: str) -> bytes:
    """Return the complete 503 response."""
    request_id = uuid.uuid4().hex
    body = json.dumps(error_body(reason, NotReady.code, request_id)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
