"""The rows of the door ``sm.observers``. The supervisor imports this: what a row needs, it imports itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sm.http.control_paths import POLLED
from sm.server.observers import ObservedProcess, Observer
from trireme_extensions.observe.tracing import variables

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from sm.invocation import Listener, Value
    from trireme_extensions.observe.capture import Capture
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
        return TracedRequests(application, self._tracer, self._fronted, POLLED)

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


CAPTURE, TRACES = CaptureObserver(), TracesObserver()
