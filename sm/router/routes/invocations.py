"""``POST /invocations``, and the local ``/endpoints/<name>/invocations`` for boto3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import MethodNotAllowed

from sm.client.decode_budget import DECODED
from sm.client.sessions import Sessions
from sm.errors import BadInput, Forbidden, Overloaded, TriremeError
from sm.router import triton_requests
from sm.router.admission import UNKNOWN, Admission, FairGate
from sm.router.answer import Answer, dumps, encode_record, write, write_error, write_list
from sm.router.classify import Classifier, ModelRequest
from sm.router.dispatch import Dispatcher
from sm.router.invocation import (
    HEADER_PREFIX,
    JSON,
    DispatchRequest,
    GenerateRequest,
    LinesRequest,
    Message,
    SessionCommand,
    TritonRequest,
    estimate_parsed_bytes,
)
from sm.router.lines import Lines
from sm.router.routes import request_handling
from sm.router.routes.request_log import RequestLog
from sm.router.routes.responses import error_answer, request_id, respond, send
from sm.router.routes.server_timing import ASKED, with_server_timing
from sm.router.routes.session_commands import ANSWERED, run_session_command
from sm.router.s3.inlining import S3_OFF
from sm.router.s3.store import Store
from sm.router.s3.uris import URI, may_have_member
from sm.router.streaming import server_sent_events

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

OTHER_METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Service:
    """The collaborators of the routes."""

    dispatcher: Dispatcher
    #: Runs the lines of a body.
    lines: Lines
    #: None if sessions are off.
    sessions: Sessions | None
    #: Payloads and results in S3; None if that is off.
    store: Store | None
    #: Answers requests in Triton's own protocol.
    triton: triton_requests.Triton
    #: Classifies messages.
    classifier: Classifier
    #: Bytes of a body.
    max_body: int
    #: Seconds of an invocation.
    timeout: float
    #: Seconds of a streamed invocation.
    stream_timeout: float
    #: True if nginx is in front, whose time of arrival can be trusted.
    fronted: bool
    #: Where requests wait for their model's turn; None if they are limited elsewhere.
    gate: FairGate | None = None
    #: Serves requests with payloads or results in S3; None if that is off.
    s3: S3Service | None = None
    #: Which requests are logged.
    requests: RequestLog = field(default_factory=RequestLog)


class S3Service:
    """Serves ``most`` requests at once, with a ``service`` that has executors of its own.

    A slow S3 then holds no thread that other requests need.
    """

    def __init__(self, service: Service, most: int) -> None:
        self._service, self._most = service, most
        self._slots = threading.BoundedSemaphore(most)

    @contextmanager
    def admitted(self) -> Iterator[Service]:
        """Yield the service for one request. :class:`Overloaded` if it is fully used."""
        if not self._slots.acquire(blocking=False):
            raise Overloaded(f"{self._most} requests with S3 are being served already")
        try:
            yield self._service
        finally:
            self._slots.release()


def direct(service: Service) -> dict[str, WSGIApplication]:
    """Return the handlers of POST by path: :class:`sm.router.app.Router` looks here first."""

    def invoke(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return send(handle_invocation(service, environ), environ, start_response)
        except Exception as error:
            return send(error_answer(error, environ), environ, start_response)

    return {"/invocations": invoke}


def blueprint(service: Service, local_endpoints: bool) -> Blueprint:
    """Return the routes of the data plane besides :func:`direct`."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=OTHER_METHODS)
    def invocations() -> Response:
        raise MethodNotAllowed(valid_methods=["POST"])

    if local_endpoints:

        @routes.route("/endpoints/<name>/invocations", methods=["POST"])
        def endpoint(name: str) -> Response:
            return respond_as_endpoint(name, lambda: handle_invocation(service, request.environ))

    return routes


def respond_as_endpoint(name: str, container: Callable[[], Answer]) -> Response:
    """Translate the container's answer as SageMaker does: every error is a 424 ``ModelError``."""
    try:
        answer = container()
    except TriremeError as error:
        answer = _model_error(write_error(error, request_id(request.environ)), name)
    return respond(
        replace(answer, headers={**answer.headers, "x-Amzn-Invoked-Production-Variant": "AllTraffic"})
    )


def _model_error(answer: Answer, endpoint: str) -> Answer:
    original = answer.read().decode()
    kind = "client" if answer.status < 500 else "server"
    body = {
        "Message": f'Received {kind} error ({answer.status}) from primary with message "{original}"',
        "OriginalStatusCode": answer.status,
        "OriginalMessage": original,
        "LogStreamArn": f"local:/endpoints/{endpoint}",
    }
    return Answer(orjson.dumps(body), status=424, headers={"x-amzn-ErrorType": "ModelError"})


def handle_invocation(
    service: Service, environ: WSGIEnvironment, in_parts: bool = False, model: str = ""
) -> Answer:
    """Read, dispatch and answer; count and log the request in every case.

    ``in_parts``: the caller uses the runtime's streaming call, so a client with parts of its own sends them.
    ``model``: the one in the path.
    """
    caller = request_handling.api_key_name(environ, service.fronted)
    arrived = request_handling.arrival(environ, service.fronted)
    with request_handling.RequestRecorder(request_id(environ), caller, service.requests, arrived) as recorder:
        message = request_handling.read_message(environ, service.max_body, model)
        if in_parts:
            message = as_forwarded(message)
        if ASKED in environ:
            return with_server_timing(
                environ,
                service.fronted,
                recorder.stages,
                lambda: process_message(service, environ, message, in_parts, recorder),
            )
        return process_message(service, environ, message, in_parts, recorder)


def process_message(
    service: Service,
    environ: WSGIEnvironment,
    message: Message,
    in_parts: bool,
    recorder: request_handling.RequestRecorder,
) -> Answer:
    """Answer ``message``; a stream keeps ``seen`` open until it has ended."""
    recorder.bytes_in = len(message.body)
    with_s3 = service.s3 is not None and may_have_member(message.body, URI)
    recorder.admission = Admission(None if with_s3 else service.gate)
    if recorder.admission.is_contended and (model := service.classifier.look_at(message)):
        # A waiting request has its body in memory, but not yet its parsed form.
        recorder.model = model
        recorder.admission.enter(
            model, lambda: request_handling.deadline(environ, service.timeout, service.fronted)
        )
    size = estimate_parsed_bytes(message)
    with DECODED.reserve(size, (service.classifier.look_at(message) or UNKNOWN) if size else None):
        if service.s3 is None or not with_s3:
            return _handle_message(service, environ, message, in_parts, recorder)
        # S3 is read before the first part of a stream is produced, which is before this returns.
        with service.s3.admitted() as separate:
            return _handle_message(
                replace(separate, fronted=service.fronted), environ, message, in_parts, recorder
            )


def _handle_message(
    service: Service,
    environ: WSGIEnvironment,
    message: Message,
    in_parts: bool,
    recorder: request_handling.RequestRecorder,
) -> Answer:
    request = service.classifier.parse(message)
    if isinstance(request, SessionCommand):
        # The classifier refuses session commands if sessions are off.
        assert service.sessions is not None
        return run_session_command(service.sessions, request)
    if isinstance(request, LinesRequest):
        model = service.classifier.look_at(message) or UNKNOWN
        with request_handling.within_deadline(environ, service.timeout, service.fronted, model):
            recorder.admission.enter(model)
            with recorder.admission:
                answer = service.lines.run(
                    request, lambda line: handle_line(service, request, line, recorder)
                )
            service.dispatcher.confirm_delivery()
            recorder.records = answer.read().count(b"\n") + 1
            return request_handling.attach_to_stream(answer, recorder)
    streamed = is_streamed(service, request, recorder, in_parts)
    seconds = service.stream_timeout if streamed else service.timeout
    is_served = service.dispatcher.registry.is_served(request.model)
    model = request.model if is_served else UNKNOWN
    with request_handling.within_deadline(environ, seconds, service.fronted, model):
        if is_served:
            recorder.model, recorder.version = request.model, request.version
        recorder.admission.enter(model)
        if isinstance(request, DispatchRequest) and request.many:
            recorder.records = len(request.records)
        if not isinstance(request, DispatchRequest):
            recorder.model, answer = service.triton.run(request)
        elif streamed:
            answer = stream_client(service, request)
        else:
            with recorder.admission:
                answer = run_client(service, request)
        return request_handling.attach_to_stream(answer, recorder)


def handle_line(
    service: Service, lines: LinesRequest, line: Message, recorder: request_handling.RequestRecorder
) -> Answer:
    """Answer a line."""
    with DECODED.reserve(estimate_parsed_bytes(line)):
        request = service.classifier.parse_line(line, lines)
        if isinstance(request, DispatchRequest):
            answer = run_client(service, request)
            recorder.model = request.model
        else:
            recorder.model, answer = service.triton.run(request)
        return answer


def stream_client(service: Service, call: DispatchRequest) -> Answer:
    """Stream the parts of the client's answer."""
    _name_session(call)
    # The client fills in the headers before its first part; they are read afterwards.
    return replace(
        server_sent_events.write(call, service.dispatcher.stream(call)), headers=call.answer_headers
    )


def run_client(service: Service, call: DispatchRequest) -> Answer:
    """Run the client; its answer goes to the caller, or to S3 if the request says so."""
    _name_session(call)
    if not call.result_s3_uri:
        return _dispatch(service, call)
    if service.store is None:
        raise Forbidden(f"result_s3_uri: {S3_OFF}")
    # Check before the work, which would be for nothing.
    place = service.store.at(call.result_s3_uri, "result_s3_uri")
    answer = _dispatch(service, replace(call, accept=JSON))
    service.store.write(place, answer.read(), answer.content_type)
    body = {"modelname": call.model, "result_s3_uri": str(place)}
    return Answer(dumps(body), headers=answer.headers)


def _dispatch(service: Service, call: DispatchRequest) -> Answer:
    if call.many:
        return write_list(call, service.dispatcher.run_encoded(call, partial(encode_record, call.model)))
    return write(call, service.dispatcher.run(call))


def as_forwarded(message: Message) -> Message:
    """Read the runtime's own Accept header, which its streaming call has beside HTTP's."""
    accept = message.headers.get(f"{HEADER_PREFIX}accept", "")
    return message._replace(headers={**message.headers, "accept": accept})


def is_streamed(
    service: Service, request: ModelRequest, recorder: request_handling.RequestRecorder, in_parts: bool
) -> bool:
    """True if the answer is sent in parts."""
    if isinstance(request, GenerateRequest):
        return request.streamed
    if isinstance(request, TritonRequest):
        return False
    client = service.dispatcher.registry.get(request.model)
    recorder.model = request.model
    streamed = server_sent_events.wants_stream(request, client, in_parts)
    if streamed and request.result_s3_uri:
        raise BadInput("result_s3_uri: a stream goes to its caller, not to S3")
    return streamed


def _name_session(call: DispatchRequest) -> None:
    """Add the session's header to the answer."""
    if call.session is not None:
        call.answer_headers[ANSWERED] = call.session.id
