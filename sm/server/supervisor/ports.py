"""Choose the ports of the box, and hold the public one from start to end."""

from __future__ import annotations

import errno
import socket
from collections.abc import Generator, Iterable

from sm.errors import StartError
from sm.settings import Settings, names_of

#: Connections that the kernel queues for the next accept (it caps this at net.core.somaxconn).
BACKLOG = 4096
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104
#: The usual ports of Triton's HTTP, gRPC and metrics.
DEFAULT_HTTP, DEFAULT_GRPC, DEFAULT_METRICS = 8000, 8001, 8002
PORT_SETTINGS = ("triton_http_port", "triton_grpc_port", "triton_metrics_port")


def listen(port: int, variable: str = "SAGEMAKER_BIND_TO_PORT") -> socket.socket:
    """Open a public port, which the environment ``variable`` sets.

    The supervisor keeps it open, and the front inherits it: connections wait in the kernel's queue while the
    front restarts or stops.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("0.0.0.0", port))  # noqa: S104
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(_describe_bind_error(port, variable, error)) from error
    listener.setblocking(False)
    return listener


def choose_ports(settings: Settings) -> tuple[int, int, int]:
    """Choose Triton's HTTP, gRPC and metrics ports: those that are set, else free ones."""
    requested = requested_ports(settings)
    used = {settings.port, *filter(None, (settings.tls and settings.tls_port, *requested))}
    for field, port in zip(PORT_SETTINGS, requested, strict=True):
        name = names_of(field)[0]
        _check_range(settings, name, port)
        sock = _bind(port, EVERYWHERE if settings.triton_ports == "all" else LOOPBACK)
        if sock is None:
            raise StartError(
                f"Port {port} cannot be opened for Triton: stop what listens there, or set {name} to one "
                "that is free."
            )
        sock.close()
    free = _free_ports(settings, used)
    try:
        http, grpc, metrics = [port or next(free) for port in requested]
    except StopIteration:
        low, high = settings.safe_ports or (0, 0)
        raise StartError(
            f"SAGEMAKER_SAFE_PORT_RANGE={low}-{high} has too few free ports for Triton."
        ) from None
    finally:
        free.close()
    return http, grpc, metrics


def requested_ports(settings: Settings) -> tuple[int, int, int]:
    """Return the three ports that the settings ask for; 0 for any.

    A port that is open to callers has Triton's usual number, unless there is a safe range.
    """
    any_port, are_open = settings.safe_ports is None, settings.triton_ports != "off"
    return (
        settings.triton_http_port or (DEFAULT_HTTP if are_open else 0),
        settings.triton_grpc_port or (DEFAULT_GRPC if are_open or (settings.allow_grpc and any_port) else 0),
        settings.triton_metrics_port
        or (DEFAULT_METRICS if are_open or (settings.allow_metrics and any_port) else 0),
    )


def _check_range(settings: Settings, variable: str, port: int) -> None:
    """Raise :class:`StartError` if a port of TRIREME_TRITON_PORTS is not in the safe range."""
    low, high = settings.safe_ports or (0, 65535)
    if port and not low <= port <= high:
        raise StartError(
            f"TRIREME_TRITON_PORTS={settings.triton_ports} opens {port}, which is outside "
            f"SAGEMAKER_SAFE_PORT_RANGE={low}-{high}: set {variable} to a port of the range."
        )


def _free_ports(settings: Settings, used: set[int]) -> Generator[int, None, None]:
    """Yield distinct free ports. Each stays bound until the generator is closed."""
    reserved: list[socket.socket] = []
    try:
        for candidate in _candidates(settings):
            if candidate in used or (sock := _bind(candidate)) is None:
                continue
            reserved.append(sock)
            port = sock.getsockname()[1]
            if port not in used:
                yield port
    finally:
        for sock in reserved:
            sock.close()


def _candidates(settings: Settings) -> Iterable[int]:
    """Yield the ports of the safe range, or port 0 for the kernel's choice."""
    if settings.safe_ports:
        return range(settings.safe_ports[0], settings.safe_ports[1] + 1)
    return iter(int, 1)


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


def _describe_bind_error(port: int, variable: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is already in use: stop what listens there, or set {variable}."
    return f"Port {port} cannot be opened ({error.strerror}): set {variable} to another."
