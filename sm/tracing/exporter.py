"""Decide which requests are traced, and send their spans.

A request that is not sampled costs only the decision. The SDK itself would start a span, parse the caller's
headers and then drop both, which costs more than the 3 % of a request that is allowed.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased
from opentelemetry.trace import SpanKind

from sm import __version__
from sm.invocation import Value
from sm.tracing.variables import service_name, shown_url

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

log = logging.getLogger(__name__)

#: Seconds that a worker waits at its end for its last traces to be sent; the supervisor gives it 3 s to end.
FLUSH_TIMEOUT_S = 1.0
#: Seconds between two log lines about a collector that accepts no traces.
LOG_INTERVAL_S = 300.0
#: Characters of a ``tracestate``; a longer one is dropped, as the specification allows. Of an attribute, and
#: of a reason in the log.
MAX_STATE_CHARACTERS, MAX_CHARACTERS, MAX_REASON_CHARACTERS = 512, 256, 200
#: A ``traceparent`` of any version, with its flags.
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")
#: The propagators whose headers this module can read without the SDK.
W3C_PROPAGATORS = {"tracecontext", "baggage"}
EMPTY = Context()


class Headers(Getter["WSGIEnvironment"]):
    """Reads a request's headers for a propagator."""

    def get(self, carrier: WSGIEnvironment, key: str) -> list[str] | None:
        value = carrier.get(f"HTTP_{key.upper().replace('-', '_')}")
        if value is None or (key == "tracestate" and len(value) > MAX_STATE_CHARACTERS):
            return None
        return [value]

    def keys(self, carrier: WSGIEnvironment) -> list[str]:
        return [name[5:].lower().replace("_", "-") for name in carrier if name.startswith("HTTP_")]


class ChosenIds(RandomIdGenerator):
    """Gives a new trace the id for which its sampler decided; each thread asks for its own."""

    def __init__(self) -> None:
        self.chosen = threading.local()

    def generate_trace_id(self) -> int:
        trace_id: int = self.chosen.trace_id
        return trace_id


class Sampling:
    """Decides whether a request is traced, as ``OTEL_TRACES_SAMPLER`` says."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.ids = ChosenIds()
        # The SDK has no public function that reads the variable.
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
        self._never = name == "always_off"
        self._follows_parent = name.startswith("parentbased_")
        propagators = environment.get("OTEL_PROPAGATORS", "tracecontext,baggage").split(",")
        self._only_w3c = {name.strip() for name in propagators} <= W3C_PROPAGATORS
        self._headers = Headers()

    def sampled(self, environ: WSGIEnvironment) -> Context | None:
        """Return the caller's context for a request that is traced; None if it is not.

        The next trace without a parent that this thread begins has the id that was chosen here.
        """
        if self._never:
            return None
        context, trace_id = EMPTY, 0
        parent = environ.get("HTTP_TRACEPARENT")
        if self._only_w3c and parent is None:
            trace_id = random.getrandbits(128) or 1
        else:
            if self._only_w3c and self._follows_parent and _is_unsampled(parent):
                return None
            context = propagate.extract(environ, EMPTY, self._headers)
            remote = trace.get_current_span(context).get_span_context()
            trace_id = remote.trace_id if remote.is_valid else random.getrandbits(128) or 1
        result = self._sampler.should_sample(context, trace_id, "request", SpanKind.SERVER)
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        self.ids.chosen.trace_id = trace_id
        return propagate.extract(environ, EMPTY, self._headers) if context is EMPTY else context


def _is_unsampled(parent: object) -> bool:
    """True for a well-formed ``traceparent`` whose trace is not recorded."""
    match = TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return match is not None and not int(match[1], 16) & 1


class Tracer:
    """Traces a worker's requests. Create it after the fork: it has a thread."""

    def __init__(self, environment: Mapping[str, str], instance: str) -> None:
        """``instance`` identifies this worker. Raises ValueError if the variables contradict each other."""
        sampling = Sampling(environment)
        self.sampled = sampling.sampled
        detected = OTELResourceDetector().detect().attributes
        defaults = {
            "service.name": service_name(environment),
            "service.version": __version__,
            "service.instance.id": instance,
        }
        resource = Resource.create({name: value for name, value in defaults.items() if name not in detected})
        self._exporter = WatchedExporter(OTLPSpanExporter(), shown_url(environment))
        self._processor = BatchSpanProcessor(self._exporter)
        limits = SpanLimits(max_attribute_length=MAX_CHARACTERS)
        provider = TracerProvider(ALWAYS_ON, resource, False, id_generator=sampling.ids, span_limits=limits)
        provider.add_span_processor(self._processor)
        #: Makes the spans of sampled requests.
        self.spans = provider.get_tracer("trireme", __version__)
        # For spans that a client's own code creates: they are recorded only within a traced request.
        clients_provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, False)
        clients_provider.add_span_processor(self._processor)
        trace.set_tracer_provider(clients_provider)

    def close(self) -> None:
        """Send the remaining traces within :data:`FLUSH_TIMEOUT_S`, unless the collector accepts none."""
        if self._exporter.lost:
            self._exporter.shutdown()
            return
        # The SDK's own shutdown waits up to 30 s for a collector that does not answer.
        thread = threading.Thread(target=self._processor.shutdown, name="last-traces", daemon=True)
        thread.start()
        thread.join(FLUSH_TIMEOUT_S)
        if thread.is_alive():
            self._exporter.shutdown()


class WatchedExporter(SpanExporter):
    """Sends spans, and logs at intervals if the collector accepts none; the SDK would log each attempt."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter, self._url = exporter, url
        self._last_message = LastMessage()
        #: Spans that were not delivered since the last delivery.
        self.lost = 0
        self._next_log_at = 0.0
        loggers = logging.getLogger("opentelemetry")
        # This covers warnings about a caller's headers too, with which a caller could fill the log.
        loggers.handlers, loggers.propagate = [self._last_message], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self.lost:
                log.info("the collector takes traces again; %d spans were lost", self.lost)
            self.lost, self._next_log_at = 0, 0.0
            return result
        self.lost += len(spans)
        now = time.monotonic()
        if now >= self._next_log_at:
            self._next_log_at = now + LOG_INTERVAL_S
            reason = self._last_message.text[:MAX_REASON_CHARACTERS]
            log.warning("traces are not delivered to %s: %s", self._url, reason)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class LastMessage(logging.Handler):
    """Keeps the last line that the SDK would have logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "no reason is known"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def open_tracer(instance: str) -> Tracer | None:
    """Create the worker's tracer. If the variables contradict each other, the worker serves without one."""
    try:
        return Tracer(os.environ, instance)
    except Exception as error:
        log.warning("traces are off: %s", error)
        return None


def write_span(name: str, began: int, attributes: Mapping[str, Value]) -> None:
    """Send a span that ends now, of a process that serves no request.

    Args:
        name: Of the span.
        began: Nanoseconds since 1970.
        attributes: What is known of it.
    """
    tracer = open_tracer(f"{name}-{os.getpid()}")
    if tracer is not None and (context := tracer.sampled({})) is not None:
        tracer.spans.start_span(name, context, attributes=attributes, start_time=began).end()
        tracer.close()
