"""``POST /invocations``, and the local ``/endpoints/<name>/invocations`` for boto3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import MethodNotAllowed

from sm.client.decode_budget import DECODED
from sm.client.sessions import Sessions
from sm.errors import BadInput, Forbidden, Overloaded, TriremeError
from sm.router import invocation as forms
from sm.router import triton_requests
from sm.router.answer import Answer, dumps, encode_record, write, write_error, write_list
from sm.router.dispatch import Dispatcher
from sm.router.lines import Lines
from sm.router.routes import request_handling
from sm.router.routes.responses import current_request, request_id, respond
from sm.router.routes.session_commands import ANSWERED, resolve_session
from sm.router.s3.inlining import S3_OFF
from sm.router.s3.store import Store
from sm.router.s3.uris import URI, may_have_member
from sm.router.streaming import server_sent_events

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

#: What Triton does to stream.
STREAM = "generate_stream"
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Service:
    """What the routes work with."""

    dispatcher: Dispatcher
    #: Where the lines of a body are run.
    lines: Lines
    #: None where they are off.
    sessions: Sessions | None
    #: Of payloads and results in S3; None where that is off.
    store: Store | None
    #: Where v2 bodies go.
    triton: triton_requests.Triton
    default_model: str
    default_accept: str
    #: Seconds an invocation may take.
    timeout: float
    #: Seconds one may take whose answer is a stream.
    stream_timeout: float
    #: Whether nginx stands in front, whose word on when a request came in can be taken.
    fronted: bool
    #: Records that a request may have.
    max_records: int
    #: How requests with payloads or results in S3 are served; None where that is off.
    s3: S3Service | None = None


class S3Service:
    """Serves ``most`` requests at once, by a ``service`` that has executors of its own.

    An S3 that is slow then holds no thread that other requests need.
    """

    def __init__(self, service: Service, most: int) -> None:
        self._service, self._most = service, most
        self._slots = threading.BoundedSemaphore(most)

    @contextmanager
    def admitted(self) -> Iterator[Service]:
        """The service, for one request; :class:`Overloaded` where it has ``most`` already."""
        if not self._slots.acquire(blocking=False):
            raise Overloaded(f"{self._most} requests with S3 are being served already")
        try:
            yield self._service
        finally:
            self._slots.release()


def blueprint(service: Service, local_endpoints: bool) -> Blueprint:
    """The routes of the data plane."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=ALL_METHODS)
    def invocations() -> Response:
        if current_request().method != "POST":
            raise MethodNotAllowed(valid_methods=["POST"])
        return respond(handle_invocation(service))

    if local_endpoints:

        @routes.route("/endpoints/<name>/invocations", methods=["POST"])
        def endpoint(name: str) -> Response:
            return respond_as_endpoint(name, lambda: handle_invocation(service))

    return routes


def respond_as_endpoint(name: str, container: Callable[[], Answer]) -> Response:
    """What SageMaker makes of the container's answer: any error is a 424 ``ModelError``."""
    try:
        answer = container()
    except TriremeError as error:
        answer = _model_error(write_error(error, request_id(request.environ)), name)
    return respond(
        replace(answer, headers={**answer.headers, "x-Amzn-Invoked-Production-Variant": "AllTraffic"})
    )


def _read_invocation(service: Service, message: forms.Message) -> forms.Invocation:
    takes_bodies = service.dispatcher.registry.takes_bodies
    call = forms.read(message, service.default_model, service.default_accept, takes_bodies)
    if call.session is not None:
        call.answer_headers[ANSWERED] = call.session.id
    return call


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


def handle_invocation(service: Service, in_parts: bool = False, model: str = "") -> Answer:
    """Read, dispatch, write; count and log it whatever comes of it.

    ``in_parts``: as SageMaker's runtime asks for a stream; a client that has parts of its own sends them.
    ``model``: the one that the path names.
    """
    incoming = current_request()
    caller = request_handling.api_key_name(incoming.environ, service.fronted)
    with request_handling.RequestRecorder(request_id(incoming.environ), caller) as seen:
        message = request_handling.read_message(incoming, model)
        if in_parts:
            message = as_forwarded(message)
        return process_message(service, incoming.environ, message, in_parts, seen)


def process_message(
    service: Service,
    environ: WSGIEnvironment,
    message: forms.Message,
    in_parts: bool,
    seen: request_handling.RequestRecorder,
) -> Answer:
    """The answer to ``message``; a stream keeps ``seen`` until it has ended."""
    with DECODED.held(forms.estimate_parsed_bytes(message)):
        if service.s3 is None or not may_have_member(message.body, URI):
            return _handle_message(service, environ, message, in_parts, seen)
        # S3 is asked before the first part of a stream is made, which is before this returns.
        with service.s3.admitted() as with_s3:
            return _handle_message(
                replace(with_s3, fronted=service.fronted), environ, message, in_parts, seen
            )


def _handle_message(
    service: Service,
    environ: WSGIEnvironment,
    message: forms.Message,
    in_parts: bool,
    seen: request_handling.RequestRecorder,
) -> Answer:
    session = resolve_session(service.sessions, message)
    if isinstance(session, Answer):
        return session
    message = replace(message, session=session, record_limit=forms.RecordLimit(service.max_records))
    if has_lines(service, message):
        with request_handling.within_deadline(environ, service.timeout, service.fronted):
            answer = service.lines.run(message, lambda line: handle_line(service, line, seen))
            service.dispatcher.confirm_delivery()
            return answer
    verb = service.triton.verb(message, service.default_model)
    call = None if verb else _read_invocation(service, message)
    streamed = verb == STREAM if call is None else _wants_stream(service, call, seen, in_parts)
    seconds = service.stream_timeout if streamed else service.timeout
    with request_handling.within_deadline(environ, seconds, service.fronted):
        if call is None:
            seen.model, answer = service.triton.run(message, verb, service.default_model)
        elif streamed:
            # Filled by the client before its first part, looked at afterwards.
            answer = replace(
                server_sent_events.write(call, service.dispatcher.stream(call)), headers=call.answer_headers
            )
        else:
            answer = run_client(service, call)
        return request_handling.attach_to_stream(answer, seen)


def has_lines(service: Service, message: forms.Message) -> bool:
    """Whether the body is JSON lines, unless it is for a client that takes any body as it is."""
    if message.content_type != forms.JSON_LINES:
        return False
    model = forms.read_address(message).model or service.default_model
    return not service.dispatcher.registry.takes_bodies(model)


def handle_line(service: Service, line: forms.Message, seen: request_handling.RequestRecorder) -> Answer:
    """The answer to a line: a request as any other, or nothing but a payload."""
    with DECODED.held(forms.estimate_parsed_bytes(line)):
        verb = service.triton.verb(line, service.default_model)
        if verb:
            # A line's answer is whole.
            verb = "generate" if verb == STREAM else verb
            seen.model, answer = service.triton.run(line, verb, service.default_model)
            return answer
        if not triton_requests.is_dispatch(line):
            forms.parse_json(line.body)
            line = replace(line, body=b'{"payload":' + line.body + b"}")
        call = _read_invocation(service, line)
        answer = run_client(service, call)
        seen.model = call.model
        return answer


def run_client(service: Service, call: forms.Invocation) -> Answer:
    """The client's answer: to the caller, or to S3 where the caller wants it there."""
    if not call.result_s3_uri:
        return _dispatch(service, call)
    if service.store is None:
        raise Forbidden(f"result_s3_uri: {S3_OFF}")
    # Before the work, which would be for nothing.
    place = service.store.at(call.result_s3_uri, "result_s3_uri")
    answer = _dispatch(service, replace(call, accept=forms.JSON))
    service.store.write(place, answer.read(), answer.content_type)
    told = {"modelname": call.model, "result_s3_uri": str(place)}
    return Answer(dumps(told), headers=answer.headers)


def _dispatch(service: Service, call: forms.Invocation) -> Answer:
    if call.many:
        return write_list(call, service.dispatcher.run_encoded(call, partial(encode_record, call.model)))
    return write(call, service.dispatcher.run(call))


def as_forwarded(message: forms.Message) -> forms.Message:
    """Who asks SageMaker's runtime for a stream says beside HTTP's own header what it accepts."""
    accept = message.headers.get(f"{forms.HEADER_PREFIX}accept", "")
    return replace(message, headers={**message.headers, "accept": accept})


def _wants_stream(
    service: Service, call: forms.Invocation, seen: request_handling.RequestRecorder, in_parts: bool
) -> bool:
    client = service.dispatcher.registry.get(call.model)
    seen.model = call.model
    streamed = server_sent_events.wants_stream(call, client, in_parts)
    if streamed and call.result_s3_uri:
        raise BadInput("result_s3_uri: a stream goes to its caller, not to S3")
    return streamed
