"""The line of an invocation in the log: whether it has one, its level, and the reason of a failure."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from typing import NamedTuple

from sm.errors import CallerGone, TriremeError, as_trireme_error

log = logging.getLogger(__name__)
#: Characters of a reason. The caller reads the whole sentence in the answer.
MAX_REASON_CHARACTERS = 200
#: What an error's sentence quotes: ``'…'``, ``"…"`` and, if the end is missing, the rest.
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", re.DOTALL)


class LogSample(NamedTuple):
    """Which successful invocations are logged. Errors always are."""

    #: The fraction of them.
    fraction: float = 1.0
    #: Those that took more seconds are always logged.
    slow_s: float = 1.0
    #: Returns a number from 0 to 1 for each line.
    chance: Callable[[], float] = random.random


def line_level(sample: LogSample, status: int, seconds: float) -> int:
    """Return the level of an invocation's line, the same as in nginx's; 0 if there is no line."""
    level = logging.INFO
    if status >= 400 and status != CallerGone.status:  # a caller that leaves is not a fault
        level = logging.WARNING if status < 500 else logging.ERROR
    if status < 400 and sample.fraction < 1.0 and seconds <= sample.slow_s:
        level = level if sample.chance() < sample.fraction else 0
    return level if level and log.isEnabledFor(level) else 0


def describe_error(error: BaseException) -> tuple[int, str, str]:
    """Return the status, the code and the reason of a failed invocation."""
    trireme_error = as_trireme_error(error)
    return trireme_error.status, trireme_error.code, reason_of(trireme_error)


def reason_of(error: TriremeError) -> str:
    """Return an error's sentence for the log: one short line without what the caller sent."""
    text = error.sentence if error.log_reason is None else error.log_reason
    if error.quotes_caller:
        text = QUOTED.sub("'…'", text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"
