"""``Server-Timing``: where the time of a request went, for a caller who asks with ``X-Trireme-Timing``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sm.metrics import QUEUE
from sm.router.answer import Answer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: The request header that asks, as WSGI has it.
ASKED = "HTTP_X_TRIREME_TIMING"


def with_server_timing(
    environ: WSGIEnvironment, fronted: bool, stages: Mapping[str, float], handle: Callable[[], Answer]
) -> Answer:
    """What ``handle`` answers, with the stages in a header; ``stages`` fills up meanwhile, in seconds.

    Of a stream only what came before its first part is known. Of an error nothing is said.
    """
    waited_ms = 1000 * waited(environ) if fronted else 0.0
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


def waited(environ: WSGIEnvironment) -> float:
    """Return the seconds from when nginx handed the request on until a worker took it."""
    try:
        return max(0.0, time.time() - float(environ.get("HTTP_X_TRIREME_START", "")))
    except ValueError:
        return 0.0


def _token(name: str) -> str:
    """A stage may have any name; a metric of the header is a token."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
