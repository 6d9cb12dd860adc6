"""The spans of one request: their parents, their number, and their errors."""

from __future__ import annotations

import time

import pytest

from sm.errors import BadInput, ClientFailed
from sm.tracing.request_trace import (
    CLIENT,
    MAX_SPANS,
    SERVER,
    Active,
    RequestTrace,
    Span,
    activate,
    deactivate,
    span_below,
)


@pytest.fixture
def trace() -> RequestTrace:
    return RequestTrace(1, None, Span("request", SERVER, 0))


def test_a_call_during_a_stage_is_a_child_of_its_span(trace: RequestTrace) -> None:
    token = activate(Active(trace, trace.root))
    try:
        earlier_call = trace.begin("before", CLIENT, trace.root)
        stage_start = time.perf_counter()
        call_in_stage = trace.begin("within", CLIENT, trace.root)
        trace.add_stage("infer", stage_start, time.perf_counter() - stage_start)
    finally:
        deactivate(token)
    stage = trace.spans[-1]
    assert (stage.name, stage.parent) == ("infer", trace.root.span_id)
    assert (earlier_call.parent, call_in_stage.parent) == (trace.root.span_id, stage.span_id)
    assert stage.start >= trace.root.start


def test_the_number_of_spans_of_a_request_is_bounded(trace: RequestTrace) -> None:
    active = Active(trace, trace.root)
    for _ in range(10 * MAX_SPANS):
        with span_below(active, "record"):
            trace.add_stage("decode", time.perf_counter(), 0.0)
    assert len(trace.spans) == MAX_SPANS
    assert trace.dropped == 20 * MAX_SPANS + 1 - MAX_SPANS


def test_a_callers_mistake_is_recorded_as_code_but_not_as_error(trace: RequestTrace) -> None:
    trace.root.record_error(BadInput("the caller's own words"))
    assert (trace.root.error, trace.root.attributes["trireme.error_code"]) == ("", "bad_input")
    trace.root.record_error(ClientFailed("the caller's own words"))
    assert trace.root.error == "client_failed"
    assert "own words" not in repr((trace.root.events, trace.root.attributes))
