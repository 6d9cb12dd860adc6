"""The request that a thread serves, for the code below the router: its time, its caller, its stages.

It travels in a context variable, so that a client's code need not pass it to the transport.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sm.errors import CallerGone, DeadlinePassed

if TYPE_CHECKING:
    from pathlib import Path

    from sm.triton.generation import Admission
    from sm.triton.retries import Patience

PASSED = "the invocation's time is over"
NO_HEADERS: Mapping[str, str] = {}
Value = str | int


class Part(Protocol):
    """A part of a request that somebody listens to."""

    #: What a call to a server carries, so that the server's own work belongs to this part.
    headers: Mapping[str, str]

    def describe(self, attributes: Mapping[str, Value]) -> None:
        """Add what became known of the part."""

    def notice(self, name: str) -> None:
        """Something happened at this moment."""

    def fail(self, error: BaseException | str) -> None:
        """Mark the part as failed, by an exception or by the code of an error."""


class Listener(Protocol):
    """Hears what happens within one request. Tracing is one; see :mod:`sm.tracing.requests`."""

    def part(
        self, name: str, attributes: Mapping[str, Value], is_call: bool, nests: bool
    ) -> AbstractContextManager[Part]:
        """Hear a part of the request begin; it ends with the context. See :func:`part`."""
        ...

    def resolved(self, model: str, version: str, records: int) -> None:
        """Hear which model is called, and with how many records."""

    def ended(self, error: BaseException | None) -> None:
        """Hear the end of the invocation. A WebSocket has one for each message."""


class Hold(NamedTuple):
    """What an invocation uses until it ends."""

    #: The record of a model.
    record: Any
    give_back: Callable[[], None]
    #: Which of a model's two versions, while a canary gets a share of the requests; else empty.
    variant: str = ""


class Suspicion(NamedTuple):
    """What records have been through together, of which one may have made a process die."""

    #: The model whose process died; empty for Triton itself.
    model: str
    #: How often the model's process and Triton died.
    crashes: int
    triton_crashes: int


class Deadline:
    """The time of one invocation, and what others need to know of it.

    Args:
        at: The deadline, in seconds of the monotonic clock.
        is_disconnected: Returns True if the caller closed the connection.
        request_id: The invocation's id, which Triton gets too.
        model: The model whose share of the decode budget the invocation uses.
        listener: Hears its parts begin and end; None if nobody listens.
    """

    __slots__ = (
        "admissions",
        "arrival",
        "at",
        "began",
        "crashes",
        "failed_status",
        "holds",
        "is_batch",
        "is_disconnected",
        "latest",
        "listener",
        "model",
        "note",
        "observations",
        "patience",
        "repeatable",
        "repeats",
        "request_id",
        "session",
        "stages",
        "suspicion",
    )

    def __init__(
        self,
        at: float,
        is_disconnected: Callable[[], bool] = lambda: False,
        request_id: str = "",
        model: str = "",
        listener: Listener | None = None,
    ) -> None:
        self.at, self.is_disconnected, self.listener = at, is_disconnected, listener
        #: What :meth:`extend` may not pass.
        self.latest = math.inf
        self.began = time.monotonic()
        self.request_id, self.model = request_id, model
        #: The calls to Triton whose answers the invocation used, unless they said whose they are.
        self.admissions: set[Admission] = set()
        #: Seconds of each stage so far, of all records together.
        self.stages: dict[str, float] = {}
        #: False if no call may be sent twice, and how often calls were sent again.
        self.repeatable, self.repeats = True, 0
        #: What tells this request from others of its id, as nginx says it; empty without nginx.
        self.arrival = ""
        #: The note that it runs, if it may run only once.
        self.note: Path | None = None
        #: How long its calls have waited; None if none did.
        self.patience: Patience | None = None
        #: True if its calls have several records together, so that a process that dies accuses them all.
        self.is_batch = False
        #: Set when that happens. The calls of one of the records are then sent alone.
        self.suspicion: Suspicion | None = None
        #: The records that crashed their model, each with its client and its error: none is run again.
        self.crashes: list[tuple[Any, Any, Exception]] = []
        #: The status of a record of its list, or of a line, that failed by the box's fault; 0 if none did.
        self.failed_status = 0
        #: The stages that are counted when the invocation ends; None to count each at once.
        self.observations: list[tuple[Any, float]] | None = None
        #: What the invocation uses until it ends, by name. None before it has begun.
        self.holds: dict[str, Hold] | None = None
        #: The caller's :class:`~sm.client.sessions.Session`, if it names one.
        self.session: Any = None

    def extend(self, seconds: float) -> None:
        """Allow more time, within what :meth:`limit` set."""
        self.at = min(self.at + seconds, self.latest)

    def limit(self, latest: float) -> None:
        """End the invocation at ``latest`` at the latest, in seconds of the monotonic clock."""
        self.at, self.latest = min(self.at, latest), latest

    def remaining(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise if the time is over or the caller is gone."""
        if self.at <= time.monotonic():
            raise DeadlinePassed(PASSED)
        if self.is_disconnected():
            raise CallerGone("the caller hung up")

    def check_caller(self) -> None:
        """Raise :class:`~sm.errors.CallerGone` if the caller closed the connection."""
        if self.is_disconnected():
            raise CallerGone("the caller hung up")


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
#: Return the deadline of the invocation that this thread serves; None if there is none.
current = _current.get
begin, end = _current.set, _current.reset


def check() -> None:
    """Raise if the time of the current request is over or its caller is gone."""
    if (request := current()) is not None:
        request.check()


@contextmanager
def running(deadline: Deadline) -> Iterator[Deadline]:
    """Serve an invocation under ``deadline``."""
    token = begin(deadline)
    try:
        yield deadline
    finally:
        end(token)


class SilentPart:
    """A part that nobody listens to."""

    __slots__ = ()
    headers = NO_HEADERS

    def describe(self, attributes: Mapping[str, Value]) -> None:
        pass

    def notice(self, name: str) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_SILENT = SilentPart()


def part(
    name: str, attributes: Mapping[str, Value] = NO_HEADERS, is_call: bool = False, nests: bool = True
) -> AbstractContextManager[Part]:
    """Tell the listener of the current request that a part of it begins and, with the context, ends.

    Args:
        name: Of the part.
        attributes: What is known of it.
        is_call: True for a call to a server.
        nests: False for a generator, whose caller works between its values.
    """
    request = current()
    if request is None or request.listener is None:
        return _SILENT
    return request.listener.part(name, attributes, is_call, nests)
