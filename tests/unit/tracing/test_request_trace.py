"""The spans of one request: where a stage's span belongs, and how many there may be."""

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


def test_a_call_within_a_stage_is_below_it_and_one_before_it_is_not(trace: RequestTrace) -> None:
    token = activate(Active(trace, trace.root))
    try:
        before = trace.begin("before", CLIENT, trace.root)
        began = time.perf_counter()
        within = trace.begin("within", CLIENT, trace.root)
        trace.add_stage("infer", began, time.perf_counter() - began)
    finally:
        deactivate(token)
    stage = trace.spans[-1]
    assert (stage.name, stage.parent) == ("infer", trace.root.span_id)
    assert (before.parent, within.parent) == (trace.root.span_id, stage.span_id)
    assert stage.start >= trace.root.start


def test_a_request_of_a_million_records_keeps_a_bounded_number_of_spans(trace: RequestTrace) -> None:
    active = Active(trace, trace.root)
    for _ in range(10 * MAX_SPANS):
        with span_below(active, "record"):
            trace.add_stage("decode", time.perf_counter(), 0.0)
    assert len(trace.spans) == MAX_SPANS
    assert trace.dropped == 20 * MAX_SPANS + 1 - MAX_SPANS


def test_a_caller_s_mistake_is_noted_and_is_no_error(trace: RequestTrace) -> None:
    trace.root.record_error(BadInput("the caller's own words"))
    assert (trace.root.error, trace.root.attributes["trireme.error_code"]) == ("", "bad_input")
    trace.root.record_error(ClientFailed("the caller's own words"))
    assert trace.root.error == "client_failed"
    assert "own words" not in repr((trace.root.events, trace.root.attributes))
