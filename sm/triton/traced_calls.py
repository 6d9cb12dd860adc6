"""Calls to Triton as spans of the request's trace. They carry the trace's ``traceparent`` to Triton."""

from __future__ import annotations

import copy
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from sm.tracing.request_trace import CLIENT, MODEL, VERSION, Active, Span, clip, current, span_below
from sm.triton.call_failures import Failed
from sm.triton.channel import INFER, Channel
from sm.triton.health import NO_KEYS
from sm.triton.http_proxy import Reply, Request, Upstream

LOOPBACK = "127.0.0.1"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
MODEL_PATH = re.compile(r"/v2/models/([^/?]+)(?:/versions/([^/?]+))?")
#: Headers of a caller's trace. Triton would trace every request that has them, also one that the caller does
#: not record.
TRACE_HEADERS = ("traceparent", "tracestate")


class TracedChannel(Channel):
    """A :class:`~sm.triton.channel.Channel` to the local Triton whose inferences are spans."""

    def __init__(
        self, port: int, timeout: float, keys: Mapping[str, str] = NO_KEYS, own_wire: bool = True
    ) -> None:
        super().__init__(port, timeout, keys, own_wire)
        self._port = port

    def infer(self, request: Any) -> Any:
        active = current()
        if active is None:
            return super().infer(request)
        with self._span(active, INFER, request) as span:
            channel = self._with_traceparent(active.trace.traceparent(span))
            try:
                return Channel.infer(channel, request)
            finally:
                self._own_wire_works = channel._own_wire_works

    def stream(self, request: Any) -> Generator[Any, None, None]:
        active = current()
        if active is None:
            yield from super().stream(request)
            return
        with self._span(active, STREAM_INFER, request) as span:
            channel = self._with_traceparent(active.trace.traceparent(span))
            with closing(Channel.stream(channel, request)) as answers:
                yield from answers

    def _with_traceparent(self, traceparent: str) -> Channel:
        """Return a copy of this channel whose calls carry the header."""
        metadata = {"traceparent": traceparent}
        channel = copy.copy(self)
        channel._keys = (*self._keys, *metadata.items())
        channel._pool = self._pool.with_metadata(metadata) if self._pool else None
        return channel

    @contextmanager
    def _span(self, active: Active, method: str, request: Any) -> Iterator[Span]:
        with span_below(active, method[1:], CLIENT, nests=False) as span:
            span.attributes.update(
                {
                    "rpc.system.name": "grpc",
                    "rpc.method": method[1:],
                    "server.address": LOOPBACK,
                    "server.port": self._port,
                    MODEL: clip(request.model_name),
                }
            )
            try:
                yield span
            except Failed as failure:
                span.error = failure.kind.code
                raise


class TracedUpstream(Upstream):
    """An :class:`~sm.triton.http_proxy.Upstream` whose requests are spans."""

    def send(self, request: Request) -> Reply:
        active, headers = current(), dict(request.headers or {})
        for name in TRACE_HEADERS:
            headers.pop(name, None)
        if active is None:
            return super().send(replace(request, headers=headers))
        with span_below(active, request.method, CLIENT) as span:
            span.attributes.update(
                {
                    "http.request.method": request.method,
                    "server.address": LOOPBACK,
                    "server.port": self._port,
                    # Without the query, which may have a key.
                    "url.full": clip(f"http://{LOOPBACK}:{self._port}{request.target.partition('?')[0]}"),
                }
            )
            if match := MODEL_PATH.match(request.target):
                in_path = {MODEL: match[1], VERSION: match[2] or ""}
                model = {name: clip(unquote(value)) for name, value in in_path.items() if value}
                span.attributes.update(model)
                active.trace.root.attributes.update(model)
            headers["traceparent"] = active.trace.traceparent(span)
            reply = super().send(replace(request, headers=headers))
            span.attributes["http.response.status_code"] = reply.status
            if reply.status >= 400:
                span.error = str(reply.status)
            return reply
