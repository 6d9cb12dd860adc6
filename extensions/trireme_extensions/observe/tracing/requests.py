"""The trace of one request: it hears the request's parts begin and end, and makes spans of them.

:class:`TracedRequests` is WSGI middleware around the router. A sampled request finds its trace in the WSGI
environment; nothing in the core knows of traces.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from sm.errors import TriremeError
from sm.http.messages import given_id
from sm.invocation import NO_HEADERS, SilentSpan, Value
from trireme_extensions.observe.tracing.exporter import Tracer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Spans of one trace. The request's own span counts those that were dropped beyond it.
MAX_SPANS = 256
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})
#: A length that is a number of bytes.
BYTE_COUNT = re.compile(r"[0-9]{1,18}")
#: A variable in a rule of werkzeug's: ``<name>`` or ``<path:rest>``.
RULE_VARIABLE = re.compile(r"<(?:\w+:)?(\w+)>")
#: The header of an answer that names its trace: https://w3c.github.io/trace-context/#traceresponse-header
RESPONSE_HEADER = "traceresponse"
ERROR_CODE = "trireme.error_code"


class TracedSpan:
    """A part of a request as a span. It has an error's class, not its sentence, which may quote a caller."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: Mapping[str, str] = {"traceparent": traceparent(span)}

    def describe(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def notice(self, name: str) -> None:
        self._span.add_event(name)

    def fail(self, error: BaseException | str) -> None:
        code = error
        if isinstance(error, BaseException):
            kind = type(error)
            self._span.add_event("exception", {"exception.type": f"{kind.__module__}.{kind.__qualname__}"})
            code = kind.__qualname__
        if isinstance(error, TriremeError):
            self._span.set_attribute(ERROR_CODE, error.code)
            code = error.code
            # A caller's error is not a failure of the box.
            if error.status < 500:
                return
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", str(code))


class RequestTrace:
    """The trace of a request: the :class:`~sm.invocation.Listener` of its spans.

    Args:
        tracer: Creates the spans.
        root: The request's span.
        context: That of the request's span.
    """

    def __init__(self, tracer: trace.Tracer, root: Span, context: Context) -> None:
        self._tracer, self.root, self._context = tracer, root, context
        self._records, self._spans, self.dropped = 0, 1, 0

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, Value] = NO_HEADERS,
        is_call: bool = False,
        nests: bool = True,
    ) -> Iterator[TracedSpan | SilentSpan]:
        """Make a span below the current one. An error that leaves it is recorded."""
        if self._spans >= MAX_SPANS:
            self.dropped += 1
            yield SilentSpan()  # its calls belong to the request's span
            return
        self._spans += 1
        # A thread of its own starts without the request's context.
        parent = None if trace.get_current_span().get_span_context().is_valid else self._context
        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        span = self._tracer.start_span(name, parent, kind, attributes)
        traced = TracedSpan(span)
        token = contexts.attach(trace.set_span_in_context(span)) if nests else None
        try:
            yield traced
        except GeneratorExit:
            raise
        except BaseException as error:
            traced.fail(error)
            raise
        finally:
            span.end()
            if token is not None:
                contexts.detach(token)

    def resolved(self, model: str, version: str, records: int) -> None:
        """Add what the request is for. Of several lines, or messages of a WebSocket, the records add up."""
        self._records += records
        attributes: dict[str, Value] = {"trireme.model": model, "trireme.model_version": version}
        attributes["trireme.records"] = self._records
        self.root.set_attributes({name: value for name, value in attributes.items() if value})

    def ended(self, error: BaseException | None) -> None:
        """Record the error of an invocation."""
        if error is not None and not isinstance(error, GeneratorExit):
            TracedSpan(self.root).fail(error)


def continued(tracer: Tracer, headers: Mapping[str, str]) -> RequestTrace | None:
    """Return what makes spans below a request's of another process; None if that one is not traced.

    Args:
        tracer: Sends the spans.
        headers: Of the call, in lower case.
    """
    context = propagate.extract(headers, Context())
    span = trace.get_current_span(context)
    is_traced = span.get_span_context().trace_flags.sampled
    return RequestTrace(tracer.spans, span, context) if is_traced else None


class TracedRequests:
    """Serves requests with ``application``, and sampled ones within a span.

    Args:
        application: The router.
        tracer: Decides which requests are sampled, and sends their traces.
        fronted: True if nginx is in front.
        untraced: Paths that are asked every few seconds and run no model.
    """

    def __init__(
        self, application: WSGIApplication, tracer: Tracer, fronted: bool, untraced: Collection[str] = ()
    ) -> None:
        self._application, self._tracer = application, tracer
        self._fronted, self._untraced = fronted, untraced

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] in self._untraced:
            return self._application(environ, start_response)
        now = time.time_ns()
        arrived = arrival(environ, now) if self._fronted else now
        started = self._tracer.start(environ, arrived)
        if started is None:
            return self._application(environ, start_response)
        tracer, (root, caller) = self._tracer.spans, started
        root.set_attributes(describe(environ, self._fronted))
        context = trace.set_span_in_context(root, caller)
        if arrived < now:
            tracer.start_span("queue", context, start_time=arrived).end(now)
        request = RequestTrace(tracer, root, context)
        environ["trireme.listener"] = request

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], object]:
            root.set_attribute("http.response.status_code", int(status[:3]))
            if int(status[:3]) >= 500:  # a 4xx is the caller's error, so the span does not fail
                root.set_status(Status(StatusCode.ERROR))
                root.set_attribute("error.type", status[:3])
            # Read the route now: Flask drops its request after the answer.
            if route := find_route(environ):
                method = describe(environ, self._fronted)["http.request.method"]
                root.set_attribute("http.route", route)
                root.update_name(f"{'HTTP' if method == '_OTHER' else method} {route}")
            return start_response(status, [*headers, (RESPONSE_HEADER, traceparent(root))], *rest)

        token = contexts.attach(context)
        try:
            body = self._application(environ, start)
        except BaseException as error:
            TracedSpan(root).fail(error)
            finish(request, environ, 0)
            raise
        finally:
            contexts.detach(token)
        return TracedBody(body, request, environ)


class TracedBody:
    """The body of a traced answer. The request ends when gunicorn closes it."""

    def __init__(self, body: Iterable[bytes], request: RequestTrace, environ: WSGIEnvironment) -> None:
        self._body, self._request, self._environ, self._size = body, request, environ, 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._body:
                self._size += len(chunk)
                yield chunk
        except Exception as error:
            TracedSpan(self._request.root).fail(error)
            raise

    def close(self) -> None:
        try:
            if callable(close := getattr(self._body, "close", None)):
                close()
        finally:
            finish(self._request, self._environ, self._size)


def finish(request: RequestTrace, environ: WSGIEnvironment, size: int) -> None:
    """End the request's span."""
    attributes: dict[str, Value] = {"http.response.body.size": size}
    # If the caller sent no id, the application chose one.
    attributes["trireme.request_id"] = str(environ.get("trireme.request_id") or given_id(environ) or "")
    if code := environ.get("trireme.error_code"):
        attributes[ERROR_CODE] = code
    if request.dropped:
        attributes["trireme.dropped_spans"] = request.dropped
    request.root.set_attributes(attributes)
    request.root.end()


def arrival(environ: WSGIEnvironment, now: int) -> int:
    """Return when nginx had the request, in nanoseconds since 1970."""
    with contextlib.suppress(ValueError, OverflowError):
        arrived = round(float(environ.get("HTTP_X_TRIREME_START", "")) * 1e9)
        if 0 < arrived < now:
            return arrived
    return now


def describe(environ: WSGIEnvironment, fronted: bool) -> dict[str, Value]:
    """Return the attributes of OpenTelemetry's HTTP conventions; without the query, which may have a key."""
    method = environ["REQUEST_METHOD"]
    host, _, port = environ.get("HTTP_HOST", "").rpartition(":")
    if not (port.isascii() and port.isdecimal()) or len(port) > len("65535"):
        host, port = environ.get("HTTP_HOST", ""), ""
    size = environ.get("CONTENT_LENGTH", "")
    attributes: dict[str, Value] = {
        "http.request.method": method if method in METHODS else "_OTHER",
        "url.path": environ["PATH_INFO"],
        "url.scheme": environ["wsgi.url_scheme"],
        "server.address": host,
        "server.port": int(port) if port else "",
        "user_agent.original": environ.get("HTTP_USER_AGENT", ""),
        # Behind nginx this is the version that nginx speaks to the router, not the caller's.
        "network.protocol.version": "" if fronted else environ["SERVER_PROTOCOL"].removeprefix("HTTP/"),
        "http.request.body.size": int(size) if BYTE_COUNT.fullmatch(size) else "",
    }
    if method not in METHODS:
        attributes["http.request.method_original"] = method
    return {name: value for name, value in attributes.items() if value != ""}


def find_route(environ: WSGIEnvironment) -> str:
    """Return the pattern of the path, as ``/models/{name}``; empty if there is none."""
    if route := environ.get("trireme.route"):
        return str(route)
    rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
    if rule is not None:
        return RULE_VARIABLE.sub(r"{\1}", rule.rule)
    # The one path that is answered without Flask.
    return "/invocations" if environ["PATH_INFO"] == "/invocations" else ""


def traceparent(span: Span) -> str:
    """Return the W3C header that makes ``span`` the parent of what a server does."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


class TraceIds(logging.Filter):
    """Adds ``trace_id`` to the log lines of a traced request. It lets every line pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = f"{context.trace_id:032x}"
        return True
