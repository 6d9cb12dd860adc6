"""Begin the traces of requests, as OpenTelemetry's sampler decides, and send their spans."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Span, SpanKind

from sm import __version__
from sm.invocation import Value
from trireme_extensions.observe.tracing.variables import shown_url

log = logging.getLogger(__name__)

#: Seconds that a worker waits at its end for its last traces to be sent; the supervisor gives it 3 s to end.
FLUSH_TIMEOUT_S = 1.0
#: Seconds between two log lines about a collector that accepts no traces.
LOG_INTERVAL_S = 300.0
#: Characters of a ``tracestate``; a longer one is dropped, as the specification allows. Of an attribute, and
#: of a reason in the log.
MAX_STATE_CHARACTERS, MAX_CHARACTERS, MAX_REASON_CHARACTERS = 512, 256, 200


class Tracer:
    """Traces a worker's requests. Create it after the fork: it has a thread."""

    def __init__(self, environment: Mapping[str, str], instance: str) -> None:
        """``instance`` identifies this worker. Raises ValueError if the variables contradict each other."""
        #: A propagator's headers, by their names in a WSGI environment.
        self._headers = {
            f"HTTP_{name.upper().replace('-', '_')}": name for name in propagate.get_global_textmap().fields
        }
        detected = OTELResourceDetector().detect().attributes
        defaults = {
            "service.name": "trireme",
            "service.version": __version__,
            "service.instance.id": instance,
        }
        resource = Resource.create({name: value for name, value in defaults.items() if name not in detected})
        self._exporter = WatchedExporter(OTLPSpanExporter(), shown_url(environment))
        self._processor = BatchSpanProcessor(self._exporter)
        limits = SpanLimits(max_attribute_length=MAX_CHARACTERS)
        # Its sampler is that of OTEL_TRACES_SAMPLER.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=limits)
        provider.add_span_processor(self._processor)
        #: Makes the spans of sampled requests.
        self.spans = provider.get_tracer("trireme", __version__)
        # For spans that a client's own code creates: they are recorded only within a traced request.
        clients_provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, False)
        clients_provider.add_span_processor(self._processor)
        trace.set_tracer_provider(clients_provider)

    def start(self, environ: Mapping[str, Any], began: int) -> tuple[Span, Context] | None:
        """Begin the span of a request that is sampled; None for another.

        Args:
            environ: The request's WSGI environment.
            began: Nanoseconds since 1970.

        Returns:
            The span, and the context of the caller's.
        """
        carrier = {header: environ[name] for name, header in self._headers.items() if name in environ}
        if len(carrier.get("tracestate", "")) > MAX_STATE_CHARACTERS:
            del carrier["tracestate"]
        caller = propagate.extract(carrier, Context()) if carrier else Context()
        span = self.spans.start_span("request", caller, SpanKind.SERVER, start_time=began)
        return (span, caller) if span.is_recording() else None

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
    if tracer is not None:
        tracer.spans.start_span(name, Context(), attributes=attributes, start_time=began).end()
        tracer.close()
