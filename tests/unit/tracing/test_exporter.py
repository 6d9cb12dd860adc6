"""Which requests are sampled, and what is logged when the collector rejects spans."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import get_current_span

from sm.tracing.exporter import Sampling, WatchedExporter

PARENTS = [f"00-{'ab' * 16}-{'cd' * 8}-0{flag}" for flag in (1, 0)]
RECORDED_PARENT = PARENTS[0]


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sampling:
    environment = {"OTEL_TRACES_SAMPLER": request.param, "OTEL_TRACES_SAMPLER_ARG": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Sampling(environment)


@pytest.mark.parametrize(
    ("sampling", "without_parent", "recorded_parent", "unrecorded_parent"),
    [
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("traceidratio", False, False, False),
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
        ("parentbased_traceidratio", False, True, False),
    ],
    indirect=["sampling"],
)
def test_the_sampler_follows_the_specification(
    sampling: Sampling, without_parent: bool, recorded_parent: bool, unrecorded_parent: bool
) -> None:
    headers: list[dict[str, str]] = [{}, *({"HTTP_TRACEPARENT": each} for each in PARENTS)]
    found = [sampling.sampled(each) is not None for each in headers]
    assert found == [without_parent, recorded_parent, unrecorded_parent]


@pytest.mark.parametrize("sampling", ["always_on"], indirect=True)
@pytest.mark.parametrize(
    "parent",
    ["", "00", f"00-{'0' * 32}-{'cd' * 8}-01", f"ff{RECORDED_PARENT[2:]}", f"{RECORDED_PARENT}-x"],
)
def test_a_malformed_parent_starts_a_new_trace(sampling: Sampling, parent: str) -> None:
    context = sampling.sampled({"HTTP_TRACEPARENT": parent})
    assert context is not None
    assert not get_current_span(context).get_span_context().is_valid
    assert sampling.ids.generate_trace_id() not in (0, int("ab" * 16, 16))


@pytest.mark.parametrize("sampling", ["always_on"], indirect=True)
def test_a_long_tracestate_is_dropped_but_the_trace_continues(sampling: Sampling) -> None:
    headers = {"HTTP_TRACEPARENT": RECORDED_PARENT, "HTTP_TRACESTATE": ",".join(["a=b"] * 200)}
    context = sampling.sampled(headers)
    assert context is not None
    parent = get_current_span(context).get_span_context()
    assert (parent.trace_id, len(parent.trace_state)) == (int("ab" * 16, 16), 0)


class RejectingCollector(SpanExporter):
    """A collector that rejects all spans until ``result`` is changed."""

    result = SpanExportResult.FAILURE

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        logging.getLogger("opentelemetry.exporter").error("Failed to export: %s", "the collector is full")
        return self.result


def test_a_rejecting_collector_is_logged_once_and_its_recovery_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("opentelemetry")
    for name in ("handlers", "propagate"):  # the exporter changes them
        monkeypatch.setattr(logger, name, getattr(logger, name))
    collector = RejectingCollector()
    exporter = WatchedExporter(collector, "http://collector/v1/traces")
    with caplog.at_level("INFO"):
        for _ in range(100):
            exporter.export([ReadableSpan("a span")])
        collector.result = SpanExportResult.SUCCESS
        exporter.export([ReadableSpan("a span")])
    rejected, recovered = caplog.messages
    assert "http://collector/v1/traces" in rejected
    assert "100" in recovered
