"""What serving an invocation takes, whatever its route: its message, its deadline, its line in the log."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flask import Request

from sm.deadline import Deadline
from sm.errors import TriremeError
from sm.invocation import Message
from sm.metrics import IN_FLIGHT, INVOCATIONS, SECONDS
from sm.routes.answers import request_id

log = logging.getLogger(__name__)


def message(incoming: Request) -> Message:
    return Message(
        body=incoming.get_data(cache=False),
        headers={name.lower(): value for name, value in incoming.headers.items()},
        query=incoming.args.to_dict(),
        request_id=request_id(),
    )


@contextmanager
def observed(model: Callable[[], str]) -> Iterator[None]:
    """Count one invocation and log a line for it: never its payload."""
    started, status = time.perf_counter(), 500
    IN_FLIGHT.inc()
    try:
        yield
        status = 200
    except TriremeError as error:
        status = error.status
        raise
    finally:
        IN_FLIGHT.dec()
        seconds = time.perf_counter() - started
        INVOCATIONS.labels(model(), str(status)).inc()
        SECONDS.labels(model()).observe(seconds)
        log.info(
            "invocation",
            extra={
                "model": model(),
                "status": status,
                "ms": round(seconds * 1000, 2),
                "request_id": request_id(),
            },
        )


def deadline(incoming: Request, timeout: float, fronted: bool) -> Deadline:
    """``timeout`` seconds from when nginx had the request: time in the queue is not given twice."""
    waited = 0.0
    if fronted:
        try:
            waited = max(0.0, time.time() - float(incoming.headers.get("X-Trireme-Start", "")))
        except ValueError:
            waited = 0.0
    connection = incoming.environ.get("gunicorn.socket")
    return Deadline(time.monotonic() + timeout - waited, lambda: _hung_up(connection))


def _hung_up(connection: socket.socket | None) -> bool:
    """Whether the peer closed: a peek that reads an end of file."""
    if connection is None:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
