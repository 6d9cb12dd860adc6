"""The time that an invocation has left, and whether its caller is still connected.

The deadline travels in a context variable, so that a client's code need not pass it to the transport.
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
    """The deadline of one invocation.

    Args:
        at: The deadline, in seconds of the monotonic clock.
        is_disconnected: Returns True if the caller closed the connection.
        request_id: The invocation's id, which Triton gets too.
        model: The model whose share of the decode budget the invocation uses.
        generations: Generations of Triton whose answers the invocation used, see :mod:`sm.generation`.
    """

    at: float
    is_disconnected: Callable[[], bool] = lambda: False
    request_id: str = ""
    model: str = ""
    generations: set[int] = field(default_factory=set)

    def remaining(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise if the time is over or the caller is gone."""
        if self.remaining() == 0.0:
            raise DeadlinePassed(PASSED)
        self.check_caller()

    def check_caller(self) -> None:
        """Raise :class:`~sm.errors.CallerGone` if the caller closed the connection."""
        if self.is_disconnected():
            raise CallerGone("the caller hung up")


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def current() -> Deadline | None:
    """Return the deadline of the invocation that this thread serves, if any."""
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
