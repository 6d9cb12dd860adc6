"""Which requests are sampled, and what is logged when the collector rejects spans."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, get_current_span

from tests.support.boxes import wait_until
from trireme_extensions.observe.tracing import exporter
from trireme_extensions.observe.tracing.exporter import Tracer, WatchedExporter

PARENTS = [f"00-{'ab' * 16}-{'cd' * 8}-0{flag}" for flag in (1, 0)]
RECORDED_PARENT = PARENTS[0]


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Tracer]:
    environment = {"OTEL_TRACES_SAMPLER": request.param, "OTEL_TRACES_SAMPLER_ARG": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)  # it can be set only once
    monkeypatch.setattr(exporter, "OTLPSpanExporter", lambda: Collector())
    tracer = Tracer(environment, "a worker")
    yield tracer
    tracer.close()


@pytest.mark.parametrize(
    ("tracer", "without_parent", "recorded_parent", "unrecorded_parent"),
    [
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("traceidratio", False, False, False),
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
        ("parentbased_traceidratio", False, True, False),
    ],
    indirect=["tracer"],
)
def test_the_sampler_follows_the_specification(
    tracer: Tracer, without_parent: bool, recorded_parent: bool, unrecorded_parent: bool
) -> None:
    headers: list[dict[str, str]] = [{}, *({"HTTP_TRACEPARENT": each} for each in PARENTS)]
    found = [tracer.start(each, 1) is not None for each in headers]
    assert found == [without_parent, recorded_parent, unrecorded_parent]


RESOURCE = {"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name=dogs"}


@pytest.mark.parametrize(
    ("variables", "name"),
    [({}, "trireme"), (RESOURCE, "dogs"), ({**RESOURCE, "OTEL_SERVICE_NAME": "cats"}, "cats")],
)
def test_the_service_name_comes_from_the_variables_in_the_specified_order(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)
    monkeypatch.setattr(exporter, "OTLPSpanExporter", lambda: Collector())
    tracer = Tracer({}, "a worker")
    assert trace_resource(tracer)["service.name"] == name
    tracer.close()


def trace_resource(tracer: Tracer) -> dict[str, object]:
    """Return what the spans say of their process."""
    span = tracer.spans.start_span("any")
    assert isinstance(span, ReadableSpan)
    return dict(span.resource.attributes)


def started(tracer: Tracer, headers: dict[str, str]) -> tuple[SpanContext, SpanContext]:
    """Begin a request's span; return what identifies it, and its caller's."""
    begun = tracer.start(headers, 1)
    assert begun is not None
    return begun[0].get_span_context(), get_current_span(begun[1]).get_span_context()


@pytest.mark.parametrize("tracer", ["always_on"], indirect=True)
@pytest.mark.parametrize(
    "parent",
    ["", "00", f"00-{'0' * 32}-{'cd' * 8}-01", f"ff{RECORDED_PARENT[2:]}", f"{RECORDED_PARENT}-x"],
)
def test_a_malformed_parent_starts_a_new_trace(tracer: Tracer, parent: str) -> None:
    span, caller = started(tracer, {"HTTP_TRACEPARENT": parent})
    assert not caller.is_valid
    assert span.trace_id not in (0, int("ab" * 16, 16))


@pytest.mark.parametrize("tracer", ["always_on"], indirect=True)
def test_a_long_tracestate_is_dropped_but_the_trace_continues(tracer: Tracer) -> None:
    headers = {"HTTP_TRACEPARENT": RECORDED_PARENT, "HTTP_TRACESTATE": ",".join(["a=b"] * 200)}
    span, caller = started(tracer, headers)
    assert span.trace_id == caller.trace_id == int("ab" * 16, 16)
    assert len(caller.trace_state) == 0


class Collector(SpanExporter):
    """A collector that answers with ``result``; one that stalls does so when its caller gives up."""

    def __init__(self, stalls: bool = False) -> None:
        self.result, self.calls = SpanExportResult.FAILURE, 0
        self.is_given_up = threading.Event()
        if not stalls:
            self.is_given_up.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        logging.getLogger("opentelemetry.exporter").error("Failed to export: %s", "the collector is full")
        self.is_given_up.wait(60)
        return self.result

    def shutdown(self) -> None:
        self.is_given_up.set()


@pytest.fixture(autouse=True)
def loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the library, which the exporter changes, are as before at the end of the test."""
    logger = logging.getLogger("opentelemetry")
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))


def test_a_rejecting_collector_is_logged_once_and_its_recovery_once(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector()
    watched = WatchedExporter(collector, "http://collector/v1/traces")
    with caplog.at_level("INFO"):
        for _ in range(100):
            watched.export([ReadableSpan("a span")])
        collector.result = SpanExportResult.SUCCESS
        watched.export([ReadableSpan("a span")])
    rejected, recovered = caplog.messages
    assert "http://collector/v1/traces" in rejected
    assert "100" in recovered


def test_a_collector_that_stalls_delays_neither_requests_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(stalls=True)
    monkeypatch.setattr(exporter, "OTLPSpanExporter", lambda: collector)
    monkeypatch.setattr(exporter, "FLUSH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)  # it can be set only once
    for name, value in {"SCHEDULE_DELAY": "10", "MAX_EXPORT_BATCH_SIZE": "4", "MAX_QUEUE_SIZE": "8"}.items():
        monkeypatch.setenv(f"OTEL_BSP_{name}", value)
    tracer = Tracer({}, "a worker")
    for _ in range(100):
        tracer.spans.start_span("request").end()
    wait_until(lambda: collector.calls)
    assert not collector.is_given_up.is_set()
    end = threading.Thread(target=tracer.close)
    end.start()
    assert collector.is_given_up.wait(10)
    end.join(10)
