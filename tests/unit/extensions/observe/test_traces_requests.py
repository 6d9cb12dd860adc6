"""The number of spans of one request is bounded. tests/integration/tracing has their parents and errors."""

from __future__ import annotations

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sm.invocation import Invocation, running, span
from sm.metrics import stage
from trireme_extensions.observe.tracing.requests import MAX_SPANS, RequestTrace


def test_the_number_of_spans_of_a_request_is_bounded() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    root = tracer.start_span("request")
    context = trace.set_span_in_context(root, Context())
    request = RequestTrace(tracer, root, context)
    token = contexts.attach(context)
    with running(Invocation(10**12, listener=request)):
        for _ in range(10 * MAX_SPANS):
            with span("record"), stage("client", "decode"):
                pass
    contexts.detach(token)
    assert len(exporter.get_finished_spans()) == MAX_SPANS - 1
    assert request.dropped == 20 * MAX_SPANS + 1 - MAX_SPANS
