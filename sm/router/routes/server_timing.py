"""The ``Server-Timing`` header: where a request's time went, for callers that send ``X-Trireme-Timing``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sm.metrics import QUEUE
from sm.router.answer import Answer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: The WSGI variable of the request header that asks for it.
TIMING_HEADER = "HTTP_X_TRIREME_TIMING"


def with_server_timing(
    environ: WSGIEnvironment, fronted: bool, stages: Mapping[str, float], handle: Callable[[], Answer]
) -> Answer:
    """Add the header to the answer of ``handle``. For a stream it covers the time until the first part.

    Args:
        environ: Of the request.
        fronted: True if nginx is in front.
        stages: Seconds by stage; ``handle`` fills it.
        handle: Answers the request. If it raises, there is no header.
    """
    waited_ms = 1000 * seconds_waited(environ) if fronted else 0.0
    started = time.perf_counter()
    answer = handle()
    total_ms = (time.perf_counter() - started) * 1000
    entries = {
        QUEUE: waited_ms + 1000 * stages.get(QUEUE, 0.0),
        **{name: 1000 * seconds for name, seconds in stages.items() if name != QUEUE},
        "total": total_ms,
    }
    timing = ", ".join(f"{_token(name)};dur={duration:.2f}" for name, duration in entries.items())
    return replace(answer, headers={**answer.headers, "Server-Timing": timing})


def seconds_waited(environ: WSGIEnvironment) -> float:
    """Return the seconds from when nginx handed the request on until a worker took it."""
    try:
        return max(0.0, time.time() - float(environ.get("HTTP_X_TRIREME_START", "")))
    except ValueError:
        return 0.0


def _token(name: str) -> str:
    """Return a stage's name as an HTTP token, which the header requires."""
    return "".join(character if character.isascii() and character.isalnum() else "-" for character in name)
