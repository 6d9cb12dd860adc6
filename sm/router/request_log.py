"""The log line of an invocation: its model, outcome and reason. It never has a payload, a key or a token."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable

import orjson

from sm.errors import CallerGone, ClientFailed, ModelFailed, TriremeError
from sm.http.messages import Answer

log = logging.getLogger(__name__)

#: Characters of a reason. The caller reads the whole sentence in the answer.
MAX_REASON_CHARACTERS = 200
#: What an error's sentence quotes: ``'…'``, ``"…"`` and, if the end is missing, the rest.
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", re.DOTALL)


class RequestLog:
    """Decides which invocations are logged, and at which level.

    Args:
        sample: The fraction of successful invocations that are logged. Errors are always logged.
        slow_s: Successful invocations that took more seconds are always logged.
        chance: Returns a number from 0 to 1 for each sampled line.
    """

    def __init__(
        self, sample: float = 1.0, slow_s: float = 1.0, chance: Callable[[], float] = random.random
    ) -> None:
        self._sample, self._slow_s, self._chance = sample, slow_s, chance

    def level(self, status: int, seconds: float) -> int:
        """Return the level of an invocation's line; 0 if there is no line."""
        level = level_of(status)
        if status < 400 and self._sample < 1.0 and seconds <= self._slow_s and self._chance() >= self._sample:
            return 0
        return level if log.isEnabledFor(level) else 0

    def write(self, level: int, members: dict[str, object]) -> None:
        """Write the line."""
        log.log(level, "invocation", extra=members)


def level_of(status: int) -> int:
    """Return the level of a status, the same as in nginx's lines. A caller that leaves is not a fault."""
    if status < 400 or status == CallerGone.status:
        return logging.INFO
    return logging.WARNING if status < 500 else logging.ERROR


def as_trireme_error(error: BaseException) -> TriremeError:
    """Return the error that the caller of a failed invocation reads."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, GeneratorExit):
        # The caller left before the stream ended.
        return CallerGone("the caller hung up")
    return ClientFailed(f"unexpected {type(error).__name__}")


def describe_error(error: BaseException) -> tuple[int, str, str]:
    """Return the status, the code and the reason of a failed invocation."""
    trireme_error = as_trireme_error(error)
    return trireme_error.status, trireme_error.code, reason_of(trireme_error)


def describe_refusal(answer: Answer) -> tuple[int, str, str] | None:
    """Return the status, the code and the reason of Triton's own error; None if the answer is not an error.

    Triton's sentence may quote what the caller sent, so it is not logged.
    """
    if answer.status < 400:
        return None
    body = answer.body if isinstance(answer.body, bytes) else b""
    try:
        code = orjson.loads(body)["code"]
    except (ValueError, LookupError, TypeError):
        code = ModelFailed.code
    return answer.status, str(code), "Triton refused the request; the answer has its sentence"


def reason_of(error: TriremeError) -> str:
    """Return an error's sentence for the log: one short line without what the caller sent."""
    text = error.sentence if error.log_reason is None else error.log_reason
    if error.quotes_caller:
        text = QUOTED.sub("'…'", text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"
