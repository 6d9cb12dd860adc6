"""The trace of one request while it runs: plain data, which :mod:`sm.tracing.exporter` sends when it ends.

A stage's span is created when the stage ends, from its duration, so stages of untraced requests cost nothing.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from sm.errors import TriremeError

#: Spans of one trace. The request's own span counts those that were dropped beyond it.
MAX_SPANS = 256
#: Characters of an attribute that comes from a caller.
MAX_CHARACTERS = 256
#: The roles of a span.
INTERNAL, SERVER, CLIENT = "internal", "server", "client"
#: The box's own attributes.
MODEL, VERSION, RECORDS, REQUEST_ID = (
    "trireme.model",
    "trireme.model_version",
    "trireme.records",
    "trireme.request_id",
)
ERROR_CODE, RECORD, PARTS, DROPPED = (
    "trireme.error_code",
    "trireme.record",
    "trireme.stream.parts",
    "trireme.dropped_spans",
)

Value = str | int | float | bool


class Event(NamedTuple):
    """Something that happened at one moment of a span."""

    name: str
    at: int
    attributes: Mapping[str, Value]


class Span:
    """A part of a request's time. Times are nanoseconds of ``perf_counter``, as the stages' are."""

    __slots__ = (
        "attributes",
        "children",
        "end",
        "error",
        "events",
        "name",
        "parent",
        "role",
        "span_id",
        "start",
    )

    def __init__(self, name: str, role: str, parent: int, start: int = 0) -> None:
        self.name, self.role, self.parent = name, role, parent
        self.span_id = random.getrandbits(64) or 1
        self.start = start or time.perf_counter_ns()
        #: 0 while the span runs.
        self.end = 0
        self.attributes: dict[str, Value] = {}
        self.events: list[Event] = []
        #: What failed; empty if nothing did.
        self.error = ""
        #: Child spans that may turn out to belong to a stage, whose span is created when it ends.
        self.children: list[Span] = []

    def record_error(self, error: BaseException) -> None:
        """Record an error by its class, without its message, which may quote the caller's payload."""
        kind = type(error)
        self.events.append(
            Event(
                "exception",
                time.perf_counter_ns(),
                {"exception.type": f"{kind.__module__}.{kind.__qualname__}"},
            )
        )
        if isinstance(error, TriremeError):
            self.attributes[ERROR_CODE] = error.code
            # A caller's error is not a failure of the box.
            if error.status < 500:
                return
        self.error = self.error or str(self.attributes.get(ERROR_CODE, kind.__qualname__))


class RequestTrace:
    """The spans of one request. Its threads add to it at the same time."""

    __slots__ = ("dropped", "offset", "root", "spans", "state", "trace_id")

    def __init__(self, trace_id: int, state: object, root: Span) -> None:
        self.trace_id, self.root = trace_id, root
        #: The caller's ``tracestate``, as the SDK parsed it.
        self.state = state
        self.spans = [root]
        self.dropped = 0
        #: Added to a span's times, it gives nanoseconds since 1970.
        self.offset = time.time_ns() - time.perf_counter_ns()

    def begin(self, name: str, role: str, parent: Span, start: int = 0) -> Span:
        """Begin a span below ``parent``. If there is no room for it, it is not sent."""
        span = Span(name, role, parent.span_id, max(start, parent.start) if start else 0)
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
            parent.children.append(span)
        else:
            self.dropped += 1
        return span

    def add_stage(self, name: str, started: float, seconds: float) -> None:
        """Add a span for a stage that has ended. Spans that began within the stage become its children."""
        active = _active.get()
        parent = active.span if active else self.root
        stage = self.begin(name, INTERNAL, parent, int(started * 1e9))
        stage.end = int((started + seconds) * 1e9)
        for child in parent.children:
            if child is not stage and child.start >= stage.start:
                child.parent = stage.span_id
        parent.children.clear()

    def traceparent(self, span: Span) -> str:
        """Return the W3C header that makes ``span`` the parent of what a server does."""
        return f"00-{self.trace_id:032x}-{span.span_id:016x}-01"


class Active(NamedTuple):
    """The trace of the request that this thread serves, and the span that becomes the parent of new ones."""

    trace: RequestTrace
    span: Span


_active: ContextVar[Active | None] = ContextVar("trace", default=None)
current = _active.get
activate, deactivate = _active.set, _active.reset


@contextmanager
def span_below(active: Active, name: str, role: str = INTERNAL, nests: bool = True) -> Iterator[Span]:
    """Run a part of a request in a span of its own, below the active one. Records an error that ends it.

    ``nests``: False for a generator whose caller works between its values.
    """
    span = active.trace.begin(name, role, active.span)
    if nests:
        _active.set(Active(active.trace, span))
    try:
        yield span
    except GeneratorExit:
        raise
    except BaseException as error:
        span.record_error(error)
        raise
    finally:
        span.end = time.perf_counter_ns()
        # No reset of the variable: a stream may be closed in another context than it was opened in.
        if nests:
            _active.set(active)


class TraceIds(logging.Filter):
    """Adds ``trace_id`` to the log lines of a traced request. It lets every line pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        active = current()
        if active is not None:
            record.trace_id = f"{active.trace.trace_id:032x}"
        return True


def clip(text: str) -> str:
    """Shorten a caller's text for a trace."""
    return text[:MAX_CHARACTERS]
