"""The one way of an invocation: read, classify, admit, reserve memory, run, confirm, answer, record.

Every route that runs a model calls :meth:`RequestFlow.answer`; a line and a record of a list run one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Never

from sm.client.base import Client
from sm.client.decode_budget import DECODED
from sm.client.readiness import Readiness
from sm.client.sessions import Sessions
from sm.errors import Interrupted, NotReady, TriremeError
from sm.http.messages import LARGE_BODY_BYTES, Answer
from sm.invocation import UNKNOWN, Invocation, begin, end
from sm.models.table import Models
from sm.router.admission import Admission, FairGate
from sm.router.answers import (
    WrongLimit,
    encode_failure,
    record_encoder,
    write,
    write_call,
    write_list,
)
from sm.router.classify import RequestClassifier, estimate_parsed_bytes
from sm.router.dispatch import run_record, stream
from sm.router.event_streams import write_stream
from sm.router.forms.session import SESSION_ID, run_session_command
from sm.router.once import OnceNotes
from sm.router.records import OrderedMap, answer_lines, run_records
from sm.router.request_types import (
    DispatchRequest,
    LinesRequest,
    Message,
    ModelRequest,
    RecordLimit,
    SessionCommand,
    TritonRequest,
)
from sm.router.running_invocation import RunningInvocation
from sm.router.triton_requests import TritonForwarder
from sm.triton.calls import Calls


def fail_request(error: TriremeError) -> Never:
    """Fail the whole request with the error of one of its records."""
    try:
        raise error
    finally:
        del error  # its traceback has this frame, which would keep the request


#: Hears of an answered invocation; see :attr:`sm.server.observers.Observer.hear`.
Hear = Callable[[str, Message, Answer, Client | None], object]
#: The memory that a small body needs.
NOTHING: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True)
class RequestFlow:
    """Answers invocations."""

    models: Models
    classifier: RequestClassifier
    #: Answers requests in Triton's own protocol.
    triton: TritonForwarder
    #: Refuses answers that may be another request's, and decides what is made again.
    calls: Calls
    #: Runs the records of lists, and lines.
    records: OrderedMap
    #: Admits requests by model; None if every request runs at once.
    gate: FairGate | None = None
    #: None if sessions are off.
    sessions: Sessions | None = None
    #: Seconds that a streamed invocation may take more than another.
    extra_stream_seconds: float = 0.0
    #: Hear of each answered invocation.
    hearing: Sequence[Hear] = ()
    #: Why models are not ready, as their clients say.
    readiness: Readiness | None = None
    #: Keeps a request from a second worker if it may run only once; None without other workers.
    once: OnceNotes | None = None

    def answer(self, invocation: RunningInvocation, read: Callable[[], Message]) -> Answer:
        """Answer a request; count and log it in every case. Raises :class:`~sm.errors.TriremeError`.

        Args:
            invocation: The request. A streamed answer keeps it open until the stream ends.
            read: Reads the request's message.
        """
        token = begin(invocation)
        try:
            with invocation:
                invocation.slot = Admission(self.gate)
                message = read()
                invocation.bytes_in = len(message.body)
                if self.gate is not None and self.gate.waiting:
                    self._admit_unparsed(invocation, message)
                is_small = len(message.body) < LARGE_BODY_BYTES
                with NOTHING if is_small else self._reserve_memory(message):
                    request = self.classifier.parse(message, invocation)
                    if isinstance(request, SessionCommand):
                        return invocation.finish(
                            run_session_command(self.sessions, request, invocation.caller)
                        )
                    self._take_model(invocation, request)
                    invocation.check()
                    invocation.slot.enter(invocation.slot_model, invocation)  # admit
                    answer = self._run_confirmed(invocation, request)
                    if self.hearing:
                        client = request.client if isinstance(request, DispatchRequest) else None
                        for hear in self.hearing:
                            hear(invocation.model, message, answer, client)
                    return invocation.finish(answer)
        finally:
            end(token)

    def _admit_unparsed(self, invocation: RunningInvocation, message: Message) -> None:
        """Admit a request by the model that its first bytes name, before it is parsed.

        While others wait, a parsed body would wait too, and it may take many times its memory. A request
        whose model is not known yet is admitted when it is parsed.
        """
        model = self.classifier.peek_model(message)
        if self.models.known(model):
            invocation.model = model
            invocation.slot.enter(model, invocation)

    def _reserve_memory(self, message: Message) -> AbstractContextManager[object]:
        """Reserve the memory of a large body's parsed form."""
        size = estimate_parsed_bytes(message)
        model = self.classifier.peek_model(message) if size else ""
        slot_model = model if self.models.known(model) else UNKNOWN
        return DECODED.reserve(size, slot_model) if size else NOTHING

    def _take_model(self, invocation: RunningInvocation, request: ModelRequest | LinesRequest) -> None:
        """Note whose slot and memory a request uses, and under which model it is counted."""
        if isinstance(request, LinesRequest):
            model = self.classifier.peek_model(request.message)
            invocation.slot_model = model if model and self.models.use_model(model, invocation) else UNKNOWN
            return
        if isinstance(request, DispatchRequest):
            if request.many:
                invocation.records = len(request.records)
        elif self.models.use_model(request.model, invocation) is None:
            # Any other name must not become a label of the metrics.
            invocation.slot_model = UNKNOWN
            return
        invocation.slot_model = invocation.model = request.model
        invocation.version = request.version
        if request.streamed:
            invocation.extend(self.extra_stream_seconds)

    def _run_confirmed(self, invocation: RunningInvocation, request: ModelRequest | LinesRequest) -> Answer:
        """Run a request, and again if it turns out that its answer may be another's."""
        while True:
            try:
                try:
                    if isinstance(request, DispatchRequest):
                        return self._run_client(invocation, request)
                    if isinstance(request, LinesRequest):
                        return self._run_lines(invocation, request)
                    return self._run_model(invocation, request)
                finally:
                    if invocation.tickets:
                        self._confirm(invocation)
            except Interrupted:
                if not self.calls.may_make_again(invocation):
                    raise
                invocation.check()
                invocation.tickets.clear()
                invocation.shared_tokens = 0
                invocation.failed_status = 0
                invocation.repeats += 1

    def _run_lines(self, invocation: RunningInvocation, request: LinesRequest) -> Answer:
        def answer_line(line: Message) -> Answer:
            with DECODED.reserve(estimate_parsed_bytes(line)):
                one = self.classifier.parse_line(line, request, invocation)
                if isinstance(one, DispatchRequest):
                    return self._run_client(invocation, one)
                return self._run_model(invocation, one)

        if request.limit is not None:  # a request that runs again counts its records anew
            request = request._replace(limit=RecordLimit(request.limit.max_records))
        answer = answer_lines(request, answer_line, self.records, invocation)
        if request.session is not None:
            answer.headers = {SESSION_ID: request.session.id}
        invocation.records = answer.read().count(b"\n") + 1
        return answer

    def _run_once(self, invocation: Invocation) -> None:
        """Note that the request may not run twice: not here, and not in another worker."""
        invocation.repeatable = False
        if self.once is not None:
            self.once.begin(invocation)

    def _run_model(self, invocation: RunningInvocation, request: TritonRequest) -> Answer:
        """Pass a request, or a line, on to Triton."""
        if invocation.listener is not None:
            invocation.listener.resolved(request.model, request.version, 0)
        if self.readiness is not None:
            self.readiness.check(request.model)
        if not self.models.is_repeatable(request.model):
            self._run_once(invocation)
        invocation.model, answer = self.triton.run(request, invocation)
        return answer

    def _run_client(self, invocation: RunningInvocation, request: DispatchRequest) -> Answer:
        """Run the records of a request or a line, and write the answer: a stream, one, a form's or a list."""
        client = request.client
        if client._marks.unready:
            raise NotReady(client._marks.unready)
        if not client.repeatable:
            self._run_once(invocation)
        if invocation.listener is not None:
            invocation.listener.resolved(request.model, request.version, len(request.records))
        if request.session is not None:
            request.answer_headers[SESSION_ID] = request.session.id
        invocation.model = request.model
        if request.streamed:
            return write_stream(request, stream(request, invocation, partial(self._confirm, invocation)))
        if not request.many and request.call is None:
            return write(request, run_record(request, invocation))
        run = partial(run_records, request, invocation, threads=self.records)
        if request.call is not None:
            return write_call(request, request.call, run(request.call.keep, fail_request))
        limit = WrongLimit.of(self.classifier.max_records, request.records.__len__)
        return write_list(request, run(record_encoder(request), encode_failure), invocation, limit)

    def _confirm(self, invocation: Invocation) -> None:
        """Refuse to deliver what may be made from another's answers, an error too."""
        if invocation.tickets:
            # Copy in one step: other records of the request may still be running.
            self.calls.guard.confirm_delivery(tuple(invocation.tickets))
