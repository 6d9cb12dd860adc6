"""The router with traces: a span for each request, and below it spans for its records.

Each class replaces one part of the router and adds spans to it. They are used only if traces are on, so
otherwise tracing costs a request nothing.
"""

from __future__ import annotations

import contextlib
import re
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
from sm.router.routes.v2_routes import ROUTE
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

#: Paths that are requested every few seconds and run no model.
NOT_TRACED = frozenset({"/ping", "/metrics", "/execution-parameters"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})
#: A variable in a rule of werkzeug's: ``<name>`` or ``<path:rest>``.
RULE_VARIABLE = re.compile(r"<(?:\w+:)?(\w+)>")
#: The header of an answer that names its trace: https://w3c.github.io/trace-context/#traceresponse-header
RESPONSE_HEADER = "traceresponse"
#: Bytes of an error's JSON that are kept to read its code.
MAX_ERROR_BYTES = 2**14


class TracedRouter:
    """Serves requests with ``application``, and sampled ones within a span.

    Args:
        application: The router.
        tracer: Decides which requests are sampled, and sends their traces.
        fronted: True if nginx is in front.
    """

    def __init__(self, application: WSGIApplication, tracer: Tracer, fronted: bool) -> None:
        self._application, self._tracer, self._fronted = application, tracer, fronted

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] in NOT_TRACED:
            return self._application(environ, start_response)
        sampled = self._tracer.begin(environ)
        if sampled is None:
            return self._application(environ, start_response)
        trace, context = sampled
        add_waiting_time(trace, environ, self._fronted)
        trace.root.attributes.update(describe_request(environ, self._fronted))

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], object]:
            note_status(trace, int(status[:3]))
            # Read the route now: Flask drops its request after the answer.
            if route := find_route(environ):
                trace.root.attributes["http.route"] = route
            return start_response(status, [*headers, (RESPONSE_HEADER, trace.traceparent(trace.root))], *rest)

        active = activate(Active(trace, trace.root))
        client_token = client_context.attach(self._tracer.context_for(trace, context))
        stages = Listening(trace.add_stage)
        try:
            body = self._application(environ, start)
        except BaseException as error:
            trace.root.record_error(error)
            self._finish(trace, environ, stages)
            raise
        finally:
            stages.leave_context()
            client_context.detach(client_token)
            deactivate(active)
        return TracedBody(body, trace, lambda: self._finish(trace, environ, stages))

    def _finish(self, trace: RequestTrace, environ: WSGIEnvironment, stages: Listening) -> None:
        stages.close()
        root = trace.root
        method, route = str(root.attributes["http.request.method"]), root.attributes.get("http.route", "")
        root.name = f"{'HTTP' if method == '_OTHER' else method} {route}".strip()
        # If the caller sent no id, the application chose one.
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
        except Exception as stream_error:
            self._trace.root.record_error(stream_error)
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
    """Return the attributes of OpenTelemetry's HTTP conventions; without the query, which may have a key."""
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
    """Return the pattern of the path, as ``/models/{name}``; empty if there is none."""
    if route := environ.get(ROUTE):
        return str(route)
    request = environ.get("werkzeug.request")
    rule = getattr(request, "url_rule", None)
    if rule is not None:
        return RULE_VARIABLE.sub(r"{\1}", rule.rule)
    # The one path that is answered without Flask.
    return "/invocations" if environ["PATH_INFO"] == "/invocations" else ""


def note_status(trace: RequestTrace, status: int) -> None:
    """Add the status to the request's span. A 4xx is the caller's error, so the span does not fail."""
    trace.root.attributes["http.response.status_code"] = status
    if status >= 500:
        trace.root.error = str(status)


def read_error_code(body: bytes) -> str:
    """Return the code in an error's JSON; empty if there is none. Its sentence may quote the caller."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    code = answer.get("code") if isinstance(answer, dict) else None
    return clip(code) if isinstance(code, str) else ""


def add_waiting_time(trace: RequestTrace, environ: WSGIEnvironment, fronted: bool) -> None:
    """Let the request's span begin when nginx had it, and add a span for the wait for a worker's thread."""
    if not fronted:
        return
    with contextlib.suppress(ValueError, OverflowError):
        arrived = round(float(environ.get("HTTP_X_TRIREME_START", "")) * 1e9) - trace.offset
        started = trace.root.start
        if 0 < arrived < started:
            trace.root.start = arrived
            trace.begin("queue", INTERNAL, trace.root, arrived).end = started


class TracedDispatcher(Dispatcher):
    """Adds a span for each record of a list, and for a stream."""

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
    """Adds a span for each line."""

    def run(self, request: LinesRequest, handle_line: Callable[[Message], Answer]) -> Answer:
        active = current()
        if active is None:
            return super().run(request, handle_line)

        def handle(line: Message) -> Answer:
            with span_below(active, "record"):
                return handle_line(line)

        return super().run(request, handle)


def describe_invocation(invocation: DispatchRequest) -> None:
    """Add the model and the number of records to the request's span."""
    active = current()
    if active is None:
        return
    attributes = active.trace.root.attributes
    attributes[MODEL] = clip(invocation.model)
    if invocation.version:
        attributes[VERSION] = clip(invocation.version)
    # Each line is a request of its own, so add up the records of all lines.
    attributes[RECORDS] = int(attributes.get(RECORDS, 0)) + len(invocation.records)


def note_failure(active: Active, result: object) -> object:
    """Add a record's failure to the active span."""
    if isinstance(result, TriremeError):
        active.span.record_error(result)
    return result
