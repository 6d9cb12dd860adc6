"""The one way of an invocation: read, classify, admit, reserve memory, run, confirm, answer, record.

Every route that runs a model calls :meth:`Pipeline.answer`; a line and a record of a list run the same step.
"""

from __future__ import annotations

import logging
import random
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sm import metrics
from sm.client.decode_budget import DECODED
from sm.client.payloads import MIN_BASE64_BYTES
from sm.client.sessions import Sessions
from sm.deadline import Deadline, begin, end
from sm.errors import (
    CallerGone,
    DeadlinePassed,
    Interrupted,
    Overloaded,
    TriremeError,
    as_trireme_error,
)
from sm.http.media_types import negotiate
from sm.http.messages import JSON, Answer, caller_network
from sm.plugins.registry import Registry
from sm.router.admission import UNKNOWN, Admission, FairGate
from sm.router.answers import Stream, record_encoder, write, write_list, write_pipeline, write_stream
from sm.router.capture import Capture
from sm.router.classify import (
    Classifier,
    DispatchRequest,
    LinesRequest,
    Message,
    ModelRequest,
    SessionCommand,
    estimate_parsed_bytes,
)
from sm.router.dispatch import run_record, stream
from sm.router.once import OnceNotes
from sm.router.records import OrderedRunner, answer_lines, run_records
from sm.router.triton_requests import Triton
from sm.triton.answer_guard import AnswerGuard

log = logging.getLogger(__name__)
#: The memory that a small body needs.
NOTHING: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True)
class Pipeline:
    """Answers invocations."""

    registry: Registry
    classifier: Classifier
    #: Answers requests in Triton's own protocol.
    triton: Triton
    #: Refuses answers that may be another request's.
    guard: AnswerGuard
    #: Runs the records of lists.
    records: OrderedRunner
    #: Runs lines. Its threads are not those of ``records``: lines that wait for their records could take all.
    lines: OrderedRunner
    #: Admits requests by model; None if every request runs at once.
    gate: FairGate | None = None
    #: None if sessions are off.
    sessions: Sessions | None = None
    #: Seconds that a streamed invocation may take more than another.
    extra_stream_seconds: float = 0.0
    #: True if requests wait for what is replaced, see :mod:`sm.triton.retries`.
    waits: bool = False
    #: Keeps samples of payloads and answers; None if that is off.
    capture: Capture | None = None
    #: Keeps a request from a second worker if it may run only once; None without other workers.
    once: OnceNotes | None = None

    def answer(self, invocation: RunningInvocation, read: Callable[[], Message]) -> Answer:
        """Answer a request; count and log it in every case. Raises :class:`~sm.errors.TriremeError`.

        Args:
            invocation: The request. A streamed answer keeps it open until the stream ends.
            read: Reads the request's message.
        """
        token = begin(invocation.deadline)
        try:
            with invocation:  # record
                message = read()
                invocation.bytes_in = len(message.body)
                invocation.slot = Admission(self.gate)
                is_contended = self.gate is not None and self.gate.has_queue
                is_plain = not is_contended and len(message.body) < MIN_BASE64_BYTES
                with NOTHING if is_plain else self._memory_for(invocation, message, is_contended):
                    request = self.classifier.parse(message)
                    if isinstance(request, SessionCommand):
                        answer = run_session_command(self.sessions, request, invocation.caller)
                        return invocation.finish(answer)
                    self._resolve(invocation, request)
                    invocation.deadline.check()
                    invocation.slot.enter(invocation.deadline.model)  # admit
                    answer = self._run_confirmed(invocation, request)
                    if self.capture is not None:
                        client = request.client if isinstance(request, DispatchRequest) else None
                        self.capture.offer(invocation.model, message, answer, client)
                    return invocation.finish(answer)
        finally:
            end(token)

    def _run_confirmed(self, invocation: RunningInvocation, request: ModelRequest | LinesRequest) -> Answer:
        """Run a request, and again if it turns out that its answer may be another's."""
        deadline = invocation.deadline
        while True:
            try:
                try:
                    if isinstance(request, LinesRequest):
                        return self._run_lines(invocation, request)
                    return self._run(invocation, request)
                finally:
                    # Nothing is delivered, no error either, that may be made from another's answers.
                    if deadline.admissions:
                        self._confirm(deadline)
            except Interrupted:
                session = getattr(request, "session", None)
                if (
                    not deadline.admissions
                    or session is not None
                    or not deadline.repeatable
                    or not self.waits
                ):
                    raise
                deadline.check()
                deadline.admissions.clear()
                deadline.failed_status = 0
                deadline.repeats += 1

    def _memory_for(
        self, invocation: RunningInvocation, message: Message, is_contended: bool
    ) -> AbstractContextManager[object]:
        """Reserve the memory of a large body. If others wait, the request is admitted before its parse."""
        size = estimate_parsed_bytes(message)
        if not size and not is_contended:
            return NOTHING
        model = self.classifier.peek_model(message)
        if model and is_contended:
            invocation.model = model
            invocation.slot.enter(model)
        return DECODED.reserve(size, model or UNKNOWN)

    def _resolve(self, invocation: RunningInvocation, request: ModelRequest | LinesRequest) -> None:
        """Note whose slot and memory the request uses. Raises for a client that does not exist."""
        deadline = invocation.deadline
        if isinstance(request, LinesRequest):
            deadline.model = self.classifier.peek_model(request.message) or UNKNOWN
            return
        if isinstance(request, DispatchRequest):
            if request.client is None:
                request.client = self.registry.get(request.model)
            if request.many:
                invocation.records = len(request.records)
            elif not request.streamed:
                invocation.deadline.observations = []
        elif not self.registry.is_served(request.model):
            # Any other name must not become a label of the metrics.
            deadline.model = UNKNOWN
            return
        deadline.model = invocation.model = request.model
        invocation.version = request.version
        if request.streamed:
            deadline.extend(self.extra_stream_seconds)

    def _run_lines(self, invocation: RunningInvocation, request: LinesRequest) -> Answer:
        def answer_line(line: Message) -> Answer:
            with DECODED.reserve(estimate_parsed_bytes(line)):
                return self._run(invocation, self.classifier.parse_line(line, request))

        answer = answer_lines(request, answer_line, self.lines, invocation.slot)
        if request.session is not None:
            answer.headers = {SESSION_ID: request.session.id}
        invocation.records = answer.read().count(b"\n") + 1
        return answer

    def _run_once(self, deadline: Deadline) -> None:
        """Note that the request may not run twice: not here, and not in another worker."""
        deadline.repeatable = False
        if self.once is not None:
            self.once.begin(deadline)

    def _run(self, invocation: RunningInvocation, request: ModelRequest) -> Answer:
        """Run a request, or a line."""
        listener = invocation.deadline.listener
        if not isinstance(request, DispatchRequest):
            if listener is not None:
                listener.resolved(request.model, request.version, 0)
            if not self.registry.is_repeatable(request.model):
                self._run_once(invocation.deadline)
            invocation.model, answer = self.triton.run(request)
            return answer
        if request.client is None:
            request.client = self.registry.get(request.model)
        request.describe_error = self.registry.describe_error
        if not request.client.repeatable:
            self._run_once(invocation.deadline)
        if listener is not None:
            listener.resolved(request.model, request.version, len(request.records))
        if request.session is not None:
            request.answer_headers[SESSION_ID] = request.session.id
        invocation.model = request.model
        if request.streamed:
            parts = stream(request, partial(self._confirm, invocation.deadline))
            return write_stream(request, parts)
        if request.pipeline is not None:
            negotiate(request.accept_header, (JSON,))  # before the model runs
            return write_pipeline(
                request, list(run_records(request, lambda result: result, self.records, invocation.slot))
            )
        if not request.many:
            return write(request, run_record(request))
        encode = record_encoder(request)
        return write_list(request, run_records(request, encode, self.records, invocation.slot))

    def _confirm(self, deadline: Deadline) -> None:
        """Refuse to deliver what may be made from another's answers."""
        if deadline.admissions:
            # Copy in one step: other records of the request may still be running.
            self.guard.confirm_delivery(tuple(deadline.admissions))


SESSION_ID, NEW_SESSION_ID, CLOSED_SESSION_ID = (
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
)


def run_session_command(sessions: Sessions | None, command: SessionCommand, caller: str) -> Answer:
    """Open a session of the caller's, or close one.

    Raises:
        BadInput: The session to close is not open.
        Overloaded: The caller, or all of them, may open no other.
    """
    # If sessions are off, the classifier has refused the command.
    assert sessions is not None
    if command.close:
        sessions.close(command.close)
        return Answer(b"{}", headers={CLOSED_SESSION_ID: command.close})
    session = sessions.open(caller)
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.expires))
    return Answer(b"{}", headers={SESSION_ID: session.id, NEW_SESSION_ID: f"{session.id}; Expires={expires}"})


#: Characters of a reason. The caller reads the whole sentence in the answer.
MAX_REASON_CHARACTERS = 200
#: What an error's sentence quotes: ``'…'``, ``"…"`` and, if the end is missing, the rest.
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", re.DOTALL)


#: The slot of an invocation that needs none.
NO_SLOT = Admission(None)
#: Seconds after its deadline at which an invocation that still runs is logged: before nginx, which does not
#: know its model, answers for it (:data:`sm.server.supervisor.nginx.TIMEOUT_MARGIN_S`).
OVERDUE_S = 4.0
#: Seconds between two checks for such invocations.
WATCH_INTERVAL_S = 0.5
OVERDUE = DeadlinePassed("the invocation's time is over, and its client still runs")


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


#: What a caller or a full box is the reason for does not count for or against a new version.
NOT_OF_A_VERSION = (CallerGone.status, Overloaded.status)
#: The invocations of this process that are not recorded yet. Whoever removes one records it.
_unrecorded: set[RunningInvocation] = set()


def record_overdue() -> None:
    """Count and log the invocations that still run :data:`OVERDUE_S` after their deadline."""
    latest = time.monotonic() - OVERDUE_S
    for invocation in list(_unrecorded):
        if invocation.deadline.at < latest:
            invocation.record(describe_error(OVERDUE))


@dataclass(slots=True, eq=False)
class RunningInvocation:
    """One invocation: its deadline, its slot, and its line in the log, which never has a payload.

    Entering it begins the count; leaving it counts, logs and gives back the slot. A streamed answer enters it
    a second time, so that the invocation ends with the stream.
    """

    #: Decides whether it is logged.
    sample: LogSample
    deadline: Deadline
    #: Seconds that it waited for a worker.
    waited: float = 0.0
    #: The name of the caller's API key.
    api_key_name: str = ""
    #: The caller's address; empty if it is not needed.
    address: str = ""
    #: True if the answer says where the time went.
    wants_timing: bool = False
    slot: Admission = NO_SLOT
    model: str = "-"
    #: The version that the caller named.
    version: str = ""
    #: Bytes of the request's body and of the answer's.
    bytes_in: int = 0
    bytes_out: int = 0
    #: Records or lines of the request; None if it is not a list.
    records: int | None = None
    #: Parts sent of a streamed answer.
    parts: int | None = None
    _entered: int = 0
    _started: float = 0.0

    @property
    def caller(self) -> str:
        """The name of the caller's API key, or the caller's address; of IPv6, the network of one customer."""
        return self.api_key_name or caller_network(self.address)

    def __enter__(self) -> RunningInvocation:
        if not self._entered:
            self._started = time.perf_counter()
            metrics.IN_FLIGHT.inc()
            _unrecorded.add(self)
            self.deadline.holds = {}
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        self.slot.leave()
        for hold in (self.deadline.holds or {}).values():
            hold.give_back()
        if self.deadline.note is not None:
            OnceNotes.end(self.deadline)
        self.record(None if error is None else describe_error(error), -1.0)
        if self.deadline.listener is not None:
            self.deadline.listener.ended(error)

    def record(self, failure: tuple[int, str, str] | None, running: float = 0.0) -> None:
        """Count and log the invocation, the first time that this is called.

        Args:
            failure: Status, code and reason of its error.
            running: Added to the invocations that are running.
        """
        try:
            _unrecorded.remove(self)
        except KeyError:
            metrics.IN_FLIGHT.inc(running)
            return
        seconds = time.perf_counter() - self._started
        status = 200 if failure is None else failure[0]
        stages, self.deadline.observations = self.deadline.observations or (), None
        total = metrics.duration(self.model, metrics.TOTAL, status)
        whole = (total.total, seconds), (total.buckets[bisect_left(metrics.BUCKETS, seconds)], 1.0)
        count = (metrics.invocations(self.model, status), 1.0)
        metrics.write((*stages, *whole, count, (metrics.IN_FLIGHT, running)))
        if self.deadline.holds and status not in NOT_OF_A_VERSION:
            # A list is answered with 200 if one of its records was right.
            of_version = self.deadline.failed_status or status
            for name, hold in list(self.deadline.holds.items()):
                if hold.variant:
                    metrics.variant(name, hold.variant, of_version).observe(seconds)
        level = line_level(self.sample, status, seconds)
        if level:
            log.log(level, "invocation", extra=self._line(status, failure, seconds))

    def finish(self, answer: Answer) -> Answer:
        """Complete the answer. If it is a stream, this object stays open until the stream ends."""
        if isinstance(answer.body, bytes):
            self.bytes_out = len(answer.body)
        else:
            answer.body = Stream(answer.body, self, self._count_part)
        if self.deadline.repeats:
            answer.headers = {**answer.headers, "X-Trireme-Repeated": "1"}
        if self.deadline.holds:
            variants = {hold.record.id: hold.variant for hold in self.deadline.holds.values() if hold.variant}
            for identity, variant in variants.items():
                answer.headers = {**answer.headers, "X-Trireme-Version": f"{identity}; {variant}"}
        if self.wants_timing:
            answer.headers = {**answer.headers, "Server-Timing": self._timing()}
        return answer

    def _count_part(self, part: bytes) -> None:
        self.parts = (self.parts or 0) + 1
        self.bytes_out += len(part)

    def _timing(self) -> str:
        """Say where the time went; for a stream, until its first part."""
        stages = self.deadline.stages
        entries = {
            metrics.QUEUE: self.waited + stages.get(metrics.QUEUE, 0.0),
            **{name: seconds for name, seconds in stages.items() if name != metrics.QUEUE},
            "total": time.perf_counter() - self._started,
        }
        # A name must be a token of HTTP.
        names = (re.sub("[^0-9A-Za-z]", "-", name) for name in entries)
        return ", ".join(
            f"{name};dur={1000 * seconds:.2f}" for name, seconds in zip(names, entries.values(), strict=True)
        )

    def _line(self, status: int, failure: tuple[int, str, str] | None, seconds: float) -> dict[str, object]:
        stages = {name: round(1000 * part, 2) for name, part in self.deadline.stages.copy().items()}
        queue_ms = round(1000 * self.waited + stages.pop(metrics.QUEUE, 0.0), 2)
        _, code, reason = failure or (0, None, None)
        hold = (self.deadline.holds or {}).get(self.model)
        line = {
            "model": self.model,
            "status": status,
            "version": self.version or None,
            "version_id": hold.record.id if hold and hold.record.version else None,
            "variant": (hold and hold.variant) or None,
            "code": code,
            "reason": reason,
            "ms": round(seconds * 1000, 2),
            "queue_ms": queue_ms,
            "stages_ms": stages or None,
            "repeats": self.deadline.repeats or None,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out or None,
            "records": self.records,
            "request_id": self.deadline.request_id,
            "parts": self.parts,
            "api_key_name": self.api_key_name or None,
        }
        return {name: value for name, value in line.items() if value is not None}
