"""What serving an invocation takes, whatever its route: its message, its deadline, its line in the log."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flask import Request

from sm import metrics
from sm.deadline import Deadline, running
from sm.errors import CallerGone, TriremeError
from sm.invocation import Answer, Message
from sm.routes.answers import request_id
from sm.streaming.stream import Stream

log = logging.getLogger(__name__)

#: Headers that have variables of their own in WSGI, and what would be mistaken for them.
OWN_PLACE = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
NO_HEADERS = frozenset(f"HTTP_{name}" for name in OWN_PLACE)


def message(incoming: Request, model: str = "") -> Message:
    """``model``: the one that the path names."""
    return Message(
        body=incoming.get_data(cache=False),
        headers=headers(incoming.environ),
        query=incoming.args.to_dict() if incoming.query_string else {},
        request_id=request_id(),
        model=model,
    )


def headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """The request's, names in lower case: from where WSGI puts them, as Flask writes each name twice anew."""
    found = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in NO_HEADERS
    }
    found.update((header, environ[name]) for name, header in OWN_PLACE.items() if environ.get(name))
    return found


@dataclass
class Seen:
    """What is known of an invocation only while it is served."""

    model: str = "-"
    #: Of a streamed answer: how many were sent.
    parts: int | None = None

    def sent(self) -> None:
        """Count a part."""
        self.parts = (self.parts or 0) + 1


@contextmanager
def observed() -> Iterator[Seen]:
    """Count one invocation and log a line for it: never its payload."""
    seen, identity = Seen(), request_id()
    started, status = time.perf_counter(), 500
    metrics.IN_FLIGHT.inc()
    try:
        yield seen
        status = 200
    except TriremeError as error:
        status = error.status
        raise
    except GeneratorExit:
        # A stream that nobody wanted to the end.
        status = CallerGone.status
        raise
    finally:
        metrics.IN_FLIGHT.dec()
        seconds = time.perf_counter() - started
        metrics.invocations(seen.model, status).inc()
        metrics.observe(metrics.seconds(seen.model), seconds)
        line = {
            "model": seen.model,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "request_id": identity,
        }
        log.info("invocation", extra=line if seen.parts is None else {**line, "parts": seen.parts})


def kept(answer: Answer, seen: Seen, held: ExitStack) -> Answer:
    """``answer``; what was entered in ``held`` is left at its end, which for a stream is yet to come."""
    if isinstance(answer.body, bytes):
        return answer
    return replace(answer, body=Stream(answer.body, held.pop_all(), seen.sent))


@contextmanager
def in_time(incoming: Request, seconds: float, fronted: bool) -> Iterator[None]:
    """Serve ``incoming`` within ``seconds``, if they are not over yet."""
    with running(deadline(incoming, seconds, fronted)) as limit:
        limit.check()
        yield


def deadline(incoming: Request, timeout: float, fronted: bool) -> Deadline:
    """``timeout`` seconds from when nginx had the request: time in the queue is not given twice."""
    waited = 0.0
    if fronted:
        try:
            waited = max(0.0, time.time() - float(incoming.headers.get("X-Trireme-Start", "")))
        except ValueError:
            waited = 0.0
    connection = incoming.environ.get("gunicorn.socket")
    return Deadline(time.monotonic() + timeout - waited, lambda: _hung_up(connection), request_id())


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
