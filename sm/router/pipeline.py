"""The one way of an invocation: read, classify, admit, reserve memory, run, confirm, answer, record.

Every route that runs a model calls :meth:`Pipeline.answer`; a line and a record of a list run the same step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from sm.client.decode_budget import DECODED
from sm.client.decoded_base64 import MIN_BYTES
from sm.client.sessions import Session, Sessions
from sm.deadline import begin, end
from sm.errors import BadInput, Forbidden, Interrupted, Overloaded
from sm.http.messages import JSON, Answer
from sm.plugins.registry import Registry
from sm.router import dispatch
from sm.router.admission import UNKNOWN, Admission, FairGate
from sm.router.answer import dumps, encode_record, write, write_list
from sm.router.capture import Capture
from sm.router.classify import Classifier, ModelRequest
from sm.router.invocation import DispatchRequest, LinesRequest, Message, SessionCommand, estimate_parsed_bytes
from sm.router.lines import answer_lines
from sm.router.ordered import OrderedRunner
from sm.router.running import RunningInvocation
from sm.router.s3.store import S3_OFF, Store
from sm.router.s3.uris import URI, may_have_member
from sm.router.streaming import server_sent_events
from sm.router.triton_requests import Triton
from sm.triton.answer_guard import AnswerGuard

#: The memory of a request that needs none.
NOTHING: AbstractContextManager[object] = nullcontext()


class Lane:
    """The threads for the records and the lines of requests, and what limits these requests.

    Requests with S3 have a lane of their own, because a slow S3 must block no other request.

    Args:
        records: Runs the records of lists.
        lines: Runs lines; not ``records``, because lines that wait for their records could take all threads.
        threads: Threads of each that one request may use.
        gate: Admits requests by model; None if ``max_requests`` limits them.
        max_requests: Requests that may be served at once; 0 for no limit.
    """

    def __init__(
        self,
        records: Executor,
        lines: Executor,
        threads: int,
        gate: FairGate | None = None,
        max_requests: int = 0,
    ) -> None:
        self.records, self.lines = OrderedRunner(records, threads), OrderedRunner(lines, threads)
        self.gate, self._max_requests = gate, max_requests
        self._slots = threading.BoundedSemaphore(max_requests or 1)
        #: Entered by each request.
        self.limit: AbstractContextManager[object] = self if max_requests else NOTHING

    def __enter__(self) -> None:
        if not self._slots.acquire(blocking=False):
            raise Overloaded(f"{self._max_requests} requests with S3 are being served already")

    def __exit__(self, *_: object) -> None:
        self._slots.release()


@dataclass(frozen=True)
class Pipeline:
    """Answers invocations."""

    registry: Registry
    classifier: Classifier
    #: Answers requests in Triton's own protocol.
    triton: Triton
    #: Refuses answers that may be another request's.
    guard: AnswerGuard
    lane: Lane
    #: For requests with payloads or results in S3; None if that is off.
    s3_lane: Lane | None = None
    #: Reads payloads and writes results in S3; None if that is off.
    store: Store | None = None
    #: None if sessions are off.
    sessions: Sessions | None = None
    #: Seconds that a streamed invocation may take more than another.
    extra_stream_seconds: float = 0.0
    #: True if requests wait for what is replaced, see :mod:`sm.triton.repeats`.
    waits: bool = False
    #: Keeps samples of payloads and answers; None if that is off.
    capture: Capture | None = None

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
                lane = self.lane if self.s3_lane is None else self._lane_of(message)
                invocation.slot = Admission(lane.gate)
                is_contended = lane.gate is not None and lane.gate.has_queue
                is_plain = not is_contended and len(message.body) < MIN_BYTES
                with lane.limit, NOTHING if is_plain else self._memory_for(invocation, message, is_contended):
                    request = self.classifier.parse(message)
                    if isinstance(request, SessionCommand):
                        answer = run_session_command(self.sessions, request, invocation.caller)
                        return invocation.finish(answer)
                    self._resolve(invocation, request)
                    invocation.deadline.check()
                    invocation.slot.enter(invocation.deadline.model)  # admit
                    answer = self._run_confirmed(invocation, request, lane)
                    if self.capture is not None:
                        client = request.client if isinstance(request, DispatchRequest) else None
                        self.capture.offer(invocation.model, message, answer, client)
                    return invocation.finish(answer)
        finally:
            end(token)

    def _run_confirmed(
        self, invocation: RunningInvocation, request: ModelRequest | LinesRequest, lane: Lane
    ) -> Answer:
        """Run a request, and again if it turns out that its answer may be another's."""
        deadline = invocation.deadline
        while True:
            try:
                try:
                    if isinstance(request, LinesRequest):
                        return self._run_lines(invocation, request, lane)
                    return self._run(invocation, request, lane)
                finally:
                    # Nothing is delivered, no error either, that may be made from another's answers.
                    if deadline.admissions:
                        self._confirm(invocation)
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
                deadline.repeats += 1

    def _lane_of(self, message: Message) -> Lane:
        """Return the lane of a request, before its body is parsed: S3 is read by records that run already."""
        if self.s3_lane is not None and may_have_member(message.body, URI):
            return self.s3_lane
        return self.lane

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
            deadline.at += self.extra_stream_seconds

    def _run_lines(self, invocation: RunningInvocation, request: LinesRequest, lane: Lane) -> Answer:
        def answer_line(line: Message) -> Answer:
            with DECODED.reserve(estimate_parsed_bytes(line)):
                return self._run(invocation, self.classifier.parse_line(line, request), lane)

        answer = answer_lines(request, answer_line, lane.lines, invocation.slot)
        if request.session is not None:
            answer.headers = {SESSION_ID: request.session.id}
        invocation.records = answer.read().count(b"\n") + 1
        return answer

    def _run(self, invocation: RunningInvocation, request: ModelRequest, lane: Lane) -> Answer:
        """Run a request, or a line."""
        listener = invocation.deadline.listener
        if not isinstance(request, DispatchRequest):
            if listener is not None:
                listener.resolved(request.model, request.version, 0)
            invocation.model, answer = self.triton.run(request)
            return answer
        if request.client is None:
            request.client = self.registry.get(request.model)
        invocation.deadline.repeatable &= request.client.repeatable
        if listener is not None:
            listener.resolved(request.model, request.version, len(request.records))
        if request.session is not None:
            request.answer_headers[SESSION_ID] = request.session.id
        invocation.model = request.model
        if request.streamed:
            return self._stream(invocation, request)
        if request.result_s3_uri:
            return self._write_to_s3(invocation, request, lane)
        return self._dispatch(invocation, request, lane)

    def _dispatch(self, invocation: RunningInvocation, request: DispatchRequest, lane: Lane) -> Answer:
        if not request.many:
            return write(request, dispatch.run_record(request, self.registry, self.store))
        encode = partial(encode_record, request.model)
        records = dispatch.run_records(
            request, self.registry, encode, lane.records, self.store, invocation.slot
        )
        return write_list(request, records)

    def _stream(self, invocation: RunningInvocation, request: DispatchRequest) -> Answer:
        if request.result_s3_uri:
            raise BadInput("result_s3_uri: a stream goes to its caller, not to S3")
        parts = dispatch.stream(request, self.registry, partial(self._confirm, invocation), self.store)
        return server_sent_events.write(request, parts)

    def _write_to_s3(self, invocation: RunningInvocation, request: DispatchRequest, lane: Lane) -> Answer:
        """Run the client; its result goes to S3."""
        if self.store is None:
            raise Forbidden(f"result_s3_uri: {S3_OFF}")
        # Check the address before the model runs.
        address = self.store.parse_address(request.result_s3_uri, "result_s3_uri")
        request.accept = JSON
        answer = self._dispatch(invocation, request, lane)
        self._confirm(invocation)
        self.store.write(address, answer.read(), answer.content_type)
        body = {"modelname": request.model, "result_s3_uri": str(address)}
        return Answer(dumps(body), headers=request.answer_headers)

    def _confirm(self, invocation: RunningInvocation) -> None:
        admissions = invocation.deadline.admissions
        if admissions:
            # Copy in one step: other records of the request may still be running.
            self.guard.confirm_delivery(tuple(admissions))


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
    if not command.close:
        return _session_opened(sessions.open(caller))
    sessions.close(command.close)
    return Answer(b"{}", headers={CLOSED_SESSION_ID: command.close})


def _session_opened(session: Session) -> Answer:
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.expires))
    return Answer(b"{}", headers={SESSION_ID: session.id, NEW_SESSION_ID: f"{session.id}; Expires={expires}"})
