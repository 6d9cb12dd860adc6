"""The router with traces: a span for each request, and spans for its records below it.

Each class adds spans to one part of the router, and is used in its place only if traces are on. So without
traces no request pays for them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
from opentelemetry import context as client_context

from sm.client.base import Client
from sm.errors import TriremeError
from sm.metrics import Listening
from sm.request_ids import given_id
from sm.router.answer import Answer
from sm.router.dispatch import Dispatcher, EncodedResult
from sm.router.invocation import DispatchRequest, LinesRequest, Message
from sm.router.lines import Lines
from sm.tracing.exporter import Tracer
from sm.tracing.request_trace import (
    ERROR_CODE,
    INTERNAL,
    MODEL,
    PARTS,
    RECORD,
    RECORDS,
    REQUEST_ID,
    VERSION,
    Active,
    Event,
    RequestTrace,
    Value,
    activate,
    clip,
    current,
    deactivate,
    span_below,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Paths that are asked every few seconds and run no model.
NOT_TRACED = frozenset({"/ping", "/metrics", "/execution-parameters"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})
#: The header of an answer that names its trace: https://w3c.github.io/trace-context/#traceresponse-header
RESPONSE_HEADER = "traceresponse"
#: Bytes of an error's JSON in which its code is looked for.
MAX_ERROR_BYTES = 2**14


class TracedRouter:
    """Serves requests with ``application``, each that is sampled in a span."""

    def __init__(self, application: WSGIApplication, tracer: Tracer, fronted: bool) -> None:
        self._application, self._tracer, self._fronted = application, tracer, fronted

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] in NOT_TRACED:
            return self._application(environ, start_response)
        begun = self._tracer.begin(environ)
        if begun is None:
            return self._application(environ, start_response)
        trace, context = begun
        add_waiting_time(trace, environ, self._fronted)
        trace.root.attributes.update(describe_request(environ, self._fronted))

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], object]:
            note_status(trace, int(status[:3]))
            # Flask forgets its request when it has answered.
            if route := find_route(environ):
                trace.root.attributes["http.route"] = route
            return start_response(status, [*headers, (RESPONSE_HEADER, trace.traceparent(trace.root))], *rest)

        active = activate(Active(trace, trace.root))
        clients = client_context.attach(self._tracer.context_for(trace, context))
        stages = Listening(trace.add_stage)
        try:
            body = self._application(environ, start)
        except BaseException as error:
            trace.root.record_error(error)
            self._finish(trace, environ, stages)
            raise
        finally:
            stages.leave_context()
            client_context.detach(clients)
            deactivate(active)
        return TracedBody(body, trace, lambda: self._finish(trace, environ, stages))

    def _finish(self, trace: RequestTrace, environ: WSGIEnvironment, stages: Listening) -> None:
        stages.close()
        root = trace.root
        method, route = str(root.attributes["http.request.method"]), root.attributes.get("http.route", "")
        root.name = f"{'HTTP' if method == '_OTHER' else method} {route}".strip()
        # The application chose the id if the caller has not.
        root.attributes[REQUEST_ID] = clip(str(environ.get("trireme.request_id") or given_id(environ) or ""))
        root.end = time.perf_counter_ns()
        self._tracer.finish(trace)


class TracedBody:
    """The body of a traced answer. The request ends when gunicorn closes it."""

    def __init__(self, body: Iterable[bytes], trace: RequestTrace, finish: Callable[[], None]) -> None:
        self._body, self._trace, self._finish = body, trace, finish

    def __iter__(self) -> Iterator[bytes]:
        attributes, size, error = self._trace.root.attributes, 0, b""
        failed = int(attributes.get("http.response.status_code", 0)) >= 400
        try:
            for chunk in self._body:
                size += len(chunk)
                if failed and size <= MAX_ERROR_BYTES:
                    error += chunk
                yield chunk
        except Exception as broken:
            self._trace.root.record_error(broken)
            raise
        finally:
            attributes["http.response.body.size"] = size
            if code := read_error_code(error):
                attributes[ERROR_CODE] = code

    def close(self) -> None:
        finish, self._finish = self._finish, lambda: None
        try:
            if callable(close := getattr(self._body, "close", None)):
                close()
        finally:
            finish()


def describe_request(environ: WSGIEnvironment, fronted: bool) -> dict[str, Value]:
    """Return the attributes of the HTTP conventions. The query is left out, as it may contain a key."""
    method = environ["REQUEST_METHOD"]
    host, _, port = environ.get("HTTP_HOST", "").rpartition(":")
    if not port.isdecimal() or len(port) > len("65535"):
        host, port = environ.get("HTTP_HOST", ""), ""
    attributes: dict[str, Value] = {
        "http.request.method": method if method in METHODS else "_OTHER",
        "url.path": clip(environ["PATH_INFO"]),
        "url.scheme": environ["wsgi.url_scheme"],
        "server.address": clip(host),
        "server.port": int(port) if port else "",
        "user_agent.original": clip(environ.get("HTTP_USER_AGENT", "")),
        # Behind nginx this is the version that nginx speaks to the router, not the caller's.
        "network.protocol.version": "" if fronted else environ["SERVER_PROTOCOL"].removeprefix("HTTP/"),
        "http.request.body.size": int(size)
        if (size := environ.get("CONTENT_LENGTH", "")).isdecimal()
        else "",
    }
    if method not in METHODS:
        attributes["http.request.method_original"] = clip(method)
    return {name: value for name, value in attributes.items() if value != ""}


def find_route(environ: WSGIEnvironment) -> str:
    """Return the pattern of the path; empty if there is none."""
    request = environ.get("werkzeug.request")
    rule = getattr(request, "url_rule", None)
    if rule is not None:
        return str(rule.rule)
    # The one path that is answered without Flask.
    return "/invocations" if environ["PATH_INFO"] == "/invocations" else ""


def note_status(trace: RequestTrace, status: int) -> None:
    """Note the status. A 4xx is the caller's error, and so no error of this span."""
    trace.root.attributes["http.response.status_code"] = status
    if status >= 500:
        trace.root.error = str(status)


def read_error_code(body: bytes) -> str:
    """Return the code of an error's JSON. Its sentence may quote the caller, and stays out."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    code = answer.get("code") if isinstance(answer, dict) else None
    return clip(code) if isinstance(code, str) else ""


def add_waiting_time(trace: RequestTrace, environ: WSGIEnvironment, fronted: bool) -> None:
    """Begin the request when nginx had it, with a span for its way to a thread of a worker."""
    if not fronted:
        return
    with contextlib.suppress(ValueError, OverflowError):
        arrived = round(float(environ.get("HTTP_X_TRIREME_START", "")) * 1e9) - trace.offset
        taken = trace.root.start
        if 0 < arrived < taken:
            trace.root.start = arrived
            trace.begin("queue", INTERNAL, trace.root, arrived).end = taken


class TracedDispatcher(Dispatcher):
    """Has a span for each record of a list, and for a stream."""

    def run(self, invocation: DispatchRequest) -> list[object]:
        if not invocation.many:  # a list goes through run_encoded
            describe_invocation(invocation)
        return super().run(invocation)

    def run_encoded(
        self, invocation: DispatchRequest, encode: Callable[[object], EncodedResult]
    ) -> Iterator[EncodedResult]:
        describe_invocation(invocation)
        return super().run_encoded(invocation, encode)

    def stream(self, invocation: DispatchRequest) -> Generator[object, None, None]:
        active = current()
        if active is None:
            yield from super().stream(invocation)
            return
        describe_invocation(invocation)
        with span_below(active, "stream") as span, contextlib.closing(super().stream(invocation)) as parts:
            for count, part in enumerate(parts, 1):
                if count == 1:
                    span.events.append(Event("first part", time.perf_counter_ns(), {}))
                span.attributes[PARTS] = count
                yield part

    def _result(self, client: Client, invocation: DispatchRequest, record: object, path: str) -> object:
        active = current()
        if active is None:
            return super()._result(client, invocation, record, path)
        if not invocation.many:
            return note_failure(active, super()._result(client, invocation, record, path))
        with span_below(active, "record") as span:
            span.attributes[RECORD] = path
            return note_failure(Active(active.trace, span), super()._result(client, invocation, record, path))


class TracedLines(Lines):
    """Has a span for each line."""

    def run(self, request: LinesRequest, handle_line: Callable[[Message], Answer]) -> Answer:
        active = current()
        if active is None:
            return super().run(request, handle_line)

        def handle(line: Message) -> Answer:
            with span_below(active, "record"):
                return handle_line(line)

        return super().run(request, handle)


def describe_invocation(invocation: DispatchRequest) -> None:
    """Note at the request's span which model it is for, and how many records it has."""
    active = current()
    if active is None:
        return
    attributes = active.trace.root.attributes
    attributes[MODEL] = clip(invocation.model)
    if invocation.version:
        attributes[VERSION] = clip(invocation.version)
    # Lines are requests of their own; the records of all of them count.
    attributes[RECORDS] = int(attributes.get(RECORDS, 0)) + len(invocation.records)


def note_failure(active: Active, result: object) -> object:
    """Note at the active span that a record failed."""
    if isinstance(result, TriremeError):
        active.span.record_error(result)
    return result
