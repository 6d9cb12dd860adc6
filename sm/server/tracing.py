"""Traces in a worker of the data plane: the tracer, and the parts of the router that use it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from sm.router.app import Parts
from sm.router.traced import TracedDispatcher, TracedLines, TracedRouter
from sm.run_state import Box
from sm.settings import Settings
from sm.tracing.exporter import Tracer, open_tracer
from sm.tracing.request_trace import TraceIds
from sm.triton.traced_calls import TracedChannel, TracedUpstream

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class Tracing:
    """The traced versions of a worker's channel, router parts and application."""

    parts = Parts(TracedUpstream, TracedDispatcher, TracedLines)

    def __init__(self, settings: Settings, box: Box, tracer: Tracer) -> None:
        self._settings, self._box, self._tracer = settings, box, tracer

    def channel(self) -> TracedChannel:
        """Connect to Triton."""
        own_wire = self._settings.grpc_client == "own"
        return TracedChannel(self._box.grpc_port, self._settings.timeout, self._box.grpc_keys, own_wire)

    def trace(self, application: WSGIApplication) -> WSGIApplication:
        """Return the application with a span for each request."""
        return TracedRouter(application, self._tracer, self._box.fronted)

    def close(self) -> None:
        """Send the remaining traces, for a bounded time."""
        self._tracer.close()


def open_tracing(settings: Settings, box: Box) -> Tracing | None:
    """Create a worker's tracing; None if the variables contradict each other."""
    tracer = open_tracer(f"{box.id}-{os.getpid()}")
    if tracer is None:
        return None
    for handler in logging.getLogger().handlers:
        handler.addFilter(TraceIds())
    return Tracing(settings, box, tracer)
