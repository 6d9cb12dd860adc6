"""The time that an invocation has left, and whether its caller is still connected.

A deadline belongs to one invocation and travels in a context variable, so that a client's code need
not pass it on: the transport asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from sm.errors import CallerGone, DeadlinePassed

PASSED = "the invocation's time is over"


@dataclass(frozen=True)
class Deadline:
    """``at`` is on the monotonic clock; ``hung_up`` says whether the caller closed the connection.

    ``request_id`` is the invocation's, which Triton is told too. ``generations``: those of the Tritons whose
    answers the invocation has used, see :mod:`sm.generation`.
    """

    at: float
    is_disconnected: Callable[[], bool] = lambda: False
    request_id: str = ""
    generations: set[int] = field(default_factory=set)

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise if there is no point in going on."""
        if self.remaining() == 0.0:
            raise DeadlinePassed(PASSED)
        self.check_caller()

    def check_caller(self) -> None:
        """Raise :class:`~sm.errors.CallerGone` if the caller closed the connection."""
        if self.is_disconnected():
            raise CallerGone("the caller hung up")


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def current() -> Deadline | None:
    """The deadline of the invocation being served, if any."""
    return _current.get()


class running:  # noqa: N801 - used as a function is
    """Serve an invocation under ``deadline``."""

    __slots__ = ("_deadline", "_token")

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __enter__(self) -> Deadline:
        self._token = _current.set(self._deadline)
        return self._deadline

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
