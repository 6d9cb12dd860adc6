"""The rows of the door ``sm.observers``. The supervisor imports this: what a row needs, it imports itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sm.http.control_paths import ControlPath, all_paths
from sm.server.observers import ObservedProcess, Observer
from trireme_extensions.observe.tracing import variables

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from flask import Blueprint

    from sm.invocation import Listener, Value
    from trireme_extensions.observe.capture import Capture
    from trireme_extensions.observe.embedded_metrics import EmbeddedMetrics
    from trireme_extensions.observe.tracing.exporter import Tracer


class CaptureObserver(Observer):
    """Keeps samples of payloads and answers."""

    variables = ("TRIREME_CAPTURE",)
    _capture: Capture | None = None

    def open(self, process: ObservedProcess) -> None:
        if process.settings.capture and process.clients is not None:
            from trireme_extensions.observe.capture import open_capture  # it brings the clients' modules

            self._capture = open_capture(process.settings, process.clients, process.box.multi_model)
            self.hear = self._capture.offer

    def close(self) -> None:
        if self._capture is not None:
            self._capture.close()


class CloudWatchObserver(Observer):
    """Writes metrics for CloudWatch into the log."""

    variables = ("TRIREME_EMF",)
    _metrics: EmbeddedMetrics | None = None

    def open(self, process: ObservedProcess) -> None:
        if process.clients is None:
            from trireme_extensions.observe.embedded_metrics import start_embedded_metrics

            self._metrics = start_embedded_metrics(process.settings, process.box)

    def close(self) -> None:
        """Write the metrics of the last requests too."""
        if self._metrics is not None:
            self._metrics.write_changes()


class DashboardObserver(Observer):
    """Keeps the last hour, and shows it at ``/dashboard``."""

    paths = (ControlPath("/dashboard", is_open=True), ControlPath("/dashboard/data", is_scraped=True))
    _process: ObservedProcess

    def schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = orjson.loads(Path(__file__).with_name("openapi.json").read_bytes())
        return schema

    def open(self, process: ObservedProcess) -> None:
        self._process = process

    def routes(self, failures: Callable[[], Mapping[str, str]]) -> Blueprint:
        from trireme_extensions.observe.dashboard import blueprint
        from trireme_extensions.observe.history import HistoryRecorder

        captures = bool(self._process.settings.capture)
        recorder = HistoryRecorder(self._process.box, captures=captures, failures=failures)
        recorder.watch()
        return blueprint(recorder.read)


class TracesObserver(Observer):
    """Sends traces of requests, of loads that they wait for, and of fetches."""

    variables = variables.ENDPOINTS
    _tracer: Tracer | None = None
    _fronted = False

    def describe(self) -> tuple[str, str] | None:
        return variables.describe(os.environ)

    def open(self, process: ObservedProcess) -> None:
        # Of the control plane's work a request waits for the loads on demand alone.
        has_spans = process.clients is not None or process.box.catalog
        if has_spans and variables.are_traces_on(os.environ):
            from trireme_extensions.observe.tracing.exporter import open_tracer  # it brings OpenTelemetry

            self._tracer = open_tracer(f"{process.box.id}-{process.name}")
            self._fronted = process.box.fronted

    def wrap(self, application: WSGIApplication) -> WSGIApplication:
        if self._tracer is None:
            return application
        from trireme_extensions.observe.tracing.requests import TracedRequests, TraceIds

        for handler in logging.getLogger().handlers:
            handler.addFilter(TraceIds())
        polled = frozenset(path.rule for path in all_paths() if path.is_polled)
        return TracedRequests(application, self._tracer, self._fronted, polled)

    def listen(self, headers: Mapping[str, str]) -> Listener | None:
        if self._tracer is None:
            return None
        from trireme_extensions.observe.tracing.requests import continued

        return continued(self._tracer, headers)

    def write_span(self, name: str, began: int, attributes: Mapping[str, Value]) -> None:
        if variables.are_traces_on(os.environ):
            from trireme_extensions.observe.tracing.exporter import write_span

            write_span(name, began, attributes)

    def close(self) -> None:
        if self._tracer is not None:
            self._tracer.close()


CAPTURE, CLOUDWATCH = CaptureObserver(), CloudWatchObserver()
DASHBOARD, TRACES = DashboardObserver(), TracesObserver()
