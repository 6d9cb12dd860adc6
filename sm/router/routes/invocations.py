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
from sm.router.routes.server_timing import TIMING_HEADER, with_server_timing
from sm.router.routes.session_commands import SESSION_ID, run_session_command
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
    #: Reads payloads and writes results in S3; None if that is off.
    store: Store | None
    #: Answers requests in Triton's own protocol.
    triton: triton_requests.Triton
    #: Classifies messages.
    classifier: Classifier
    #: Bytes of a request's body, at most.
    max_body: int
    #: Seconds of an invocation, at most.
    timeout: float
    #: Seconds of a streamed invocation, at most.
    stream_timeout: float
    #: True if nginx is in front, so that its headers can be trusted: time of arrival, name of the API key.
    fronted: bool
    #: Admits requests by model; None if something else limits them.
    gate: FairGate | None = None
    #: Serves requests with payloads or results in S3; None if that is off.
    s3: S3Service | None = None
    #: Decides which requests are logged.
    requests: RequestLog = field(default_factory=RequestLog)


class S3Service:
    """Serves requests with S3 on executors of their own, so that a slow S3 blocks no other request.

    Args:
        service: Has the separate executors.
        max_requests: Requests with S3 that are served at once.
    """

    def __init__(self, service: Service, max_requests: int) -> None:
        self._service, self._max_requests = service, max_requests
        self._slots = threading.BoundedSemaphore(max_requests)

    @contextmanager
    def admitted(self) -> Iterator[Service]:
        """Yield the service for one request. Raises :class:`Overloaded` if no slot is free."""
        if not self._slots.acquire(blocking=False):
            raise Overloaded(f"{self._max_requests} requests with S3 are being served already")
        try:
            yield self._service
        finally:
            self._slots.release()


def direct(service: Service) -> dict[str, WSGIApplication]:
    """Return the WSGI handlers of POST by path, which :class:`sm.router.app.Router` calls without Flask."""

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
    """Read, dispatch and answer a request; count and log it in every case.

    Args:
        service: The collaborators.
        environ: Of the request.
        in_parts: True if the caller used the runtime's streaming call: a client that streams then does so.
        model: The model in the path.
    """
    caller = request_handling.api_key_name(environ, service.fronted)
    arrived = request_handling.arrival(environ, service.fronted)
    with request_handling.RequestRecorder(request_id(environ), caller, service.requests, arrived) as recorder:
        message = request_handling.read_message(environ, service.max_body, model)
        if in_parts:
            message = with_runtime_accept(message)
        if TIMING_HEADER in environ:
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
    """Answer ``message``; a streamed answer keeps ``recorder`` open until it ends."""
    recorder.bytes_in = len(message.body)
    with_s3 = service.s3 is not None and may_have_member(message.body, URI)
    recorder.admission = Admission(None if with_s3 else service.gate)
    if recorder.admission.is_contended and (model := service.classifier.peek_model(message)):
        # Wait before the body is parsed: its parsed form may take many times its memory.
        recorder.model = model
        recorder.admission.enter(
            model, lambda: request_handling.deadline(environ, service.timeout, service.fronted)
        )
    size = estimate_parsed_bytes(message)
    with DECODED.reserve(size, (service.classifier.peek_model(message) or UNKNOWN) if size else None):
        if service.s3 is None or not with_s3:
            return _handle_message(service, environ, message, in_parts, recorder)
        # A stream produces its first part before this returns, and it reads S3 before that part.
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
        # If sessions are off, the classifier raises for session commands.
        assert service.sessions is not None
        return run_session_command(service.sessions, request)
    if isinstance(request, LinesRequest):
        model = service.classifier.peek_model(message) or UNKNOWN
        with request_handling.within_deadline(environ, service.timeout, service.fronted, model):
            recorder.admission.enter(model)
            with recorder.admission:
                answer = service.lines.run(
                    request, lambda line: handle_line(service, request, line, recorder)
                )
            if request.session is not None:
                answer = replace(answer, headers={SESSION_ID: request.session.id})
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
    """Answer one of the lines of a request."""
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
    _add_session_header(call)
    # The same dict: the client may add headers until its first part.
    return replace(
        server_sent_events.write(call, service.dispatcher.stream(call)), headers=call.answer_headers
    )


def run_client(service: Service, call: DispatchRequest) -> Answer:
    """Run the client; its answer goes to the caller, or to S3 if the request says so."""
    _add_session_header(call)
    if not call.result_s3_uri:
        return _dispatch(service, call)
    if service.store is None:
        raise Forbidden(f"result_s3_uri: {S3_OFF}")
    # Check the address before the model runs.
    address = service.store.parse_address(call.result_s3_uri, "result_s3_uri")
    answer = _dispatch(service, replace(call, accept=JSON))
    service.store.write(address, answer.read(), answer.content_type)
    body = {"modelname": call.model, "result_s3_uri": str(address)}
    return Answer(dumps(body), headers=answer.headers)


def _dispatch(service: Service, call: DispatchRequest) -> Answer:
    if call.many:
        return write_list(call, service.dispatcher.run_encoded(call, partial(encode_record, call.model)))
    return write(call, service.dispatcher.run(call))


def with_runtime_accept(message: Message) -> Message:
    """Take the Accept header from the one that the runtime's streaming call has in its place."""
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


def _add_session_header(call: DispatchRequest) -> None:
    if call.session is not None:
        call.answer_headers[SESSION_ID] = call.session.id
