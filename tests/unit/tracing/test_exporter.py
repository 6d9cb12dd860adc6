"""Which requests are sampled, and what is said of a collector that takes nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from sm.tracing.exporter import Sampling, WatchedExporter

RECORDED, NOT_RECORDED = (f"00-{'ab' * 16}-{'cd' * 8}-0{flag}" for flag in (1, 0))


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sampling:
    environment = {"OTEL_TRACES_SAMPLER": request.param, "OTEL_TRACES_SAMPLER_ARG": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Sampling(environment)


@pytest.mark.parametrize(
    ("sampling", "alone", "recorded", "not_recorded"),
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
def test_the_sampler_decides_as_the_specification_says(
    sampling: Sampling, alone: bool, recorded: bool, not_recorded: bool
) -> None:
    assert (sampling.begin({}) is not None) is alone
    assert (sampling.begin({"HTTP_TRACEPARENT": RECORDED}) is not None) is recorded
    assert (sampling.begin({"HTTP_TRACEPARENT": NOT_RECORDED}) is not None) is not_recorded


@pytest.mark.parametrize("sampling", ["always_on"], indirect=True)
@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'cd' * 8}-01",
        f"00-{'ab' * 16}-{'0' * 16}-01",
        f"ff{RECORDED[2:]}",
        RECORDED + "-x",
    ],
)
def test_a_malformed_parent_begins_a_new_trace(sampling: Sampling, parent: str) -> None:
    begun = sampling.begin({"HTTP_TRACEPARENT": parent})
    assert begun is not None
    assert begun[0].root.parent == 0
    assert begun[0].trace_id not in (0, int("ab" * 16, 16))


@pytest.mark.parametrize("sampling", ["always_on"], indirect=True)
def test_a_long_tracestate_is_dropped_and_the_trace_goes_on(sampling: Sampling) -> None:
    begun = sampling.begin({"HTTP_TRACEPARENT": RECORDED, "HTTP_TRACESTATE": ",".join(["a=b"] * 200)})
    assert begun is not None
    assert begun[0].trace_id == int("ab" * 16, 16)
    assert not begun[0].state


class Refusing(SpanExporter):
    """A collector that takes nothing until it is told to."""

    result = SpanExportResult.FAILURE

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        logging.getLogger("opentelemetry.exporter").error("Failed to export: %s", "the collector is full")
        return self.result


@pytest.fixture
def opentelemetry_logger() -> Iterator[None]:
    logger = logging.getLogger("opentelemetry")
    before = logger.handlers, logger.propagate
    yield
    logger.handlers, logger.propagate = before


@pytest.mark.usefixtures("opentelemetry_logger")
def test_a_collector_that_takes_nothing_is_one_line_and_one_more_when_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = Refusing()
    exporter = WatchedExporter(collector, "http://collector/v1/traces")
    with caplog.at_level("INFO"):
        for _ in range(100):
            exporter.export([ReadableSpan("a span")])
        collector.result = SpanExportResult.SUCCESS
        exporter.export([ReadableSpan("a span")])
    assert caplog.messages == [
        "traces are not delivered to http://collector/v1/traces: Failed to export: the collector is full",
        "the collector takes traces again; 100 spans were lost",
    ]
