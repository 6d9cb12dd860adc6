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


def test_the_number_of_spans_of_a_request_is_bounded(traced: Traced) -> None:
    for _ in range(10 * MAX_SPANS):
        with part("record"), stage("client", "decode"):
            pass
    assert len(traced.exporter.get_finished_spans()) == MAX_SPANS - 1
    assert traced.request.dropped == 20 * MAX_SPANS + 1 - MAX_SPANS
