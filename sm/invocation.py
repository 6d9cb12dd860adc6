"""One invocation: its time, its caller, its stages, and what it uses until it ends.

The router passes it as an argument. A context variable has it too, for what a client's code calls back.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from sm.errors import CallerGone, DeadlinePassed

PASSED = "the invocation's time is over"
NO_HEADERS: Mapping[str, str] = {}
#: Stands for every model that the router does not know: it may come, or the answer is a 404.
UNKNOWN = "-"
Value = str | int
Done = TypeVar("Done")
#: Seconds until a wait first looks whether its caller has gone, and between the next looks. Most waits end
#: before the first.
FIRST_LOOK_S, LOOK_S = 0.05, 0.1


class Span(Protocol):
    """A part of a request's time that somebody listens to."""

    #: Headers that a call to a server carries, so that the server's own work belongs to this span.
    headers: Mapping[str, str]

    def describe(self, attributes: Mapping[str, Value]) -> None:
        """Add what became known of it."""

    def notice(self, name: str) -> None:
        """Something happened at this moment."""

    def fail(self, error: BaseException | str) -> None:
        """Mark it as failed, by an exception or by the code of an error."""


class Listener(Protocol):
    """Hears what happens within one request. A trace is one: see the door ``sm.observers``."""

    def span(
        self, name: str, attributes: Mapping[str, Value], is_call: bool, nests: bool
    ) -> AbstractContextManager[Span]:
        """Hear a span of the request begin; it ends with the context. See :func:`span`."""
        ...

    def resolved(self, model: str, version: str, records: int) -> None:
        """Hear which model is called, and with how many records."""

    def ended(self, error: BaseException | None) -> None:
        """Hear the end of the invocation. A WebSocket has one for each message."""


class ModelLease(NamedTuple):
    """A loaded model that an invocation uses until it ends."""

    #: The record of a model.
    record: Any
    give_back: Callable[[], None]
    #: Which of a model's two versions, while a canary gets a share of the requests; else empty.
    variant: str = ""


class Suspicion(NamedTuple):
    """The deaths under records that ran together, one of which may have caused them."""

    #: The model whose process died; empty for Triton itself.
    model: str
    #: How often the model's process and Triton died.
    crashes: int
    triton_crashes: int


class Ticket(NamedTuple):
    """The generations with which the answer to a call of Triton is confirmed."""

    #: The Python models whose answers the call may get, each with its generation.
    generations: tuple[tuple[str, int], ...]
    #: When the box had last stood still as the call began.
    resumed: float
    #: The model whose calls are sent alone, this one among them.
    alone: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class Invocation:
    """The scope of one call of a model: whatever lasts as long as it does."""

    #: The deadline, in seconds of the monotonic clock.
    at: float
    #: Returns True if the caller closed the connection.
    is_disconnected: Callable[[], bool] = lambda: False
    #: Its id, which Triton gets too.
    request_id: str = ""
    #: The model whose slots and decode budget it uses.
    slot_model: str = ""
    #: Hears its parts begin and end; None if nobody listens.
    listener: Listener | None = None
    _: KW_ONLY
    #: The latest deadline that :meth:`extend` may set.
    latest: float = math.inf
    began: float = field(default_factory=time.monotonic)
    #: The calls to Triton whose answers the invocation used, unless they said whose they are.
    tickets: set[Ticket] = field(default_factory=set)
    #: Seconds of each stage so far, of all records together.
    stages: dict[str, float] = field(default_factory=dict)
    #: False if no call may be sent twice.
    repeatable: bool = True
    #: How often calls were sent again.
    repeats: int = 0
    #: A text of nginx's that tells this request from others of its id; empty without nginx.
    arrival: str = ""
    #: The note that it runs, if it may run only once.
    note: Path | None = None
    #: Seconds that its calls have waited; calls that wait side by side count once.
    spent_waiting: float = 0.0
    #: True if its calls have several records together, so that a process that dies accuses them all.
    is_batch: bool = False
    #: Set when a process died under a batch. The calls of one of its records are then sent alone.
    suspicion: Suspicion | None = None
    #: The records that crashed their model, each with its client and its error: none is run again.
    crashes: list[tuple[Any, Any, Exception]] = field(default_factory=list)
    #: The status of a record of its list, or of a line, that failed by the box's fault; 0 if none did.
    failed_status: int = 0
    #: The models that the invocation uses until it ends, by name. None before it has begun.
    leases: dict[str, ModelLease] | None = None
    #: Tokens of texts that several others of it are read with, counted with each of them.
    shared_tokens: int = 0
    #: The caller's :class:`~sm.client.sessions.Session`, if it names one.
    session: Any = None
    #: The form of its request (:class:`~sm.router.forms.form.Form`), if that has a path of its own, and what
    #: its errors repeat of the request.
    form: tuple[Any, Any] | None = None

    def waiting_for(self, model: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Wait for a model in the block. Where requests share threads, its share bounds such waits."""
        return nullcontext()

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


#: For what a client's code calls back: its calls of Triton, its stages, the memory of its pictures. All else
#: has the invocation as an argument.
_current: ContextVar[Invocation | None] = ContextVar("invocation", default=None)
#: Return the invocation that this thread serves; None if there is none.
current = _current.get
begin, end = _current.set, _current.reset


def wait(
    until: Callable[[float], Done | Literal[False] | None],
    invocation: Invocation | None,
    check: Callable[[], object] | None = None,
) -> Done:
    """Wait for something while its caller waits too: every wait within an invocation is this one.

    The report of a process in doubt is not given up: see ``AnswerGuard._report``.

    Args:
        until: Waits for it, for up to so many seconds, and returns it; None or False if it did not come.
        invocation: The one that waits. None if nobody can leave.
        check: Called between two looks at the caller. It raises if the wait must end.

    Raises:
        DeadlinePassed, CallerGone: The invocation ended first.
    """
    seconds = FIRST_LOOK_S
    while True:
        if invocation is not None:
            seconds = min(seconds, max(0.0, invocation.at - time.monotonic()))
        done = until(seconds)
        if done is not None and done is not False:
            return done
        if invocation is not None:
            invocation.check()
        if check is not None:
            check()
        seconds = LOOK_S


def held_lock() -> threading.Lock:
    """Return a lock that is taken: its release ends a wait for it. An event costs ten times as much."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@contextmanager
def running(invocation: Invocation) -> Iterator[Invocation]:
    """Serve an invocation: code that has no argument for it finds it by :data:`current`."""
    token = begin(invocation)
    try:
        yield invocation
    finally:
        end(token)


@contextmanager
def turn(lock: threading.Lock, model: str, invocation: Invocation | None) -> Iterator[None]:
    """Hold a lock in the block. An invocation that waits for it counts as one that waits for its model.

    Raises:
        Overloaded: No further request for the model may wait.
        DeadlinePassed, CallerGone: The invocation ended first.
    """
    with nullcontext() if invocation is None else invocation.waiting_for(model):
        wait(partial(lock.acquire, True), invocation)
        try:
            yield
        finally:
            lock.release()


class SilentSpan:
    """A span that nobody listens to."""

    __slots__ = ()
    headers = NO_HEADERS

    def describe(self, attributes: Mapping[str, Value]) -> None:
        pass

    def notice(self, name: str) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_SILENT = SilentSpan()


def span(
    name: str, attributes: Mapping[str, Value] = NO_HEADERS, is_call: bool = False, nests: bool = True
) -> AbstractContextManager[Span]:
    """Tell the listener of the current request that a span of it begins and, with the context, ends.

    Args:
        name: Of the span.
        attributes: What is known of it.
        is_call: True for a call to a server.
        nests: False for a generator, whose caller works between its values.
    """
    invocation = current()
    if invocation is None or invocation.listener is None:
        return _SILENT
    return invocation.listener.span(name, attributes, is_call, nests)
