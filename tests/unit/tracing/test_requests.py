"""The spans of one request: their parents, their number, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sm.deadline import Deadline, part, running
from sm.errors import BadInput, ClientFailed
from sm.metrics import stage
from sm.tracing.requests import MAX_SPANS, RequestTrace


class Traced(NamedTuple):
    """A request that runs, and what was exported of it."""

    request: RequestTrace
    exporter: InMemorySpanExporter

    def spans(self) -> dict[str, ReadableSpan]:
        """End the request; return its spans by name."""
        self.request.root.end()
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    root = tracer.start_span("request")
    context = trace.set_span_in_context(root, Context())
    request = RequestTrace(tracer, root, context)
    token = contexts.attach(context)
    with running(Deadline(10**12, listener=request)):
        yield Traced(request, exporter)
    contexts.detach(token)


def test_a_call_during_a_stage_is_a_child_of_its_span(traced: Traced) -> None:
    with part("before", is_call=True):
        pass
    with stage("client", "infer"), part("within", is_call=True) as call:
        header = call.headers["traceparent"]
    spans = traced.spans()
    parents = {name: span.parent and span.parent.span_id for name, span in spans.items()}
    root, infer, within = (spans[name].context for name in ("request", "infer", "within"))
    assert root
    assert infer
    assert within
    assert parents == {
        "request": None,
        "before": root.span_id,
        "infer": root.span_id,
        "within": infer.span_id,
    }
    assert header == f"00-{root.trace_id:032x}-{within.span_id:016x}-01"


def test_the_number_of_spans_of_a_request_is_bounded(traced: Traced) -> None:
    for _ in range(10 * MAX_SPANS):
        with part("record"), stage("client", "decode"):
            pass
    assert len(traced.exporter.get_finished_spans()) == MAX_SPANS - 1
    assert traced.request.dropped == 20 * MAX_SPANS + 1 - MAX_SPANS


def test_a_callers_mistake_is_recorded_as_code_but_not_as_error(traced: Traced) -> None:
    with pytest.raises(BadInput), part("mistake"):
        raise BadInput("the caller's own words")
    with pytest.raises(ClientFailed), part("failure"):
        raise ClientFailed("the caller's own words")
    spans = traced.spans()
    mistake, failure = dict(spans["mistake"].attributes or {}), dict(spans["failure"].attributes or {})
    assert (spans["mistake"].status.is_ok, spans["failure"].status.is_ok) == (True, False)
    assert mistake == {"trireme.error_code": "bad_input"}
    assert failure == {"trireme.error_code": "client_failed", "error.type": "client_failed"}
    assert "own words" not in "".join(span.to_json() for span in spans.values())
