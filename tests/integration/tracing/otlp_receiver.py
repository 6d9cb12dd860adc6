"""A trace collector for OTLP over HTTP, which takes protobuf from the router and JSON from Triton."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.boxes import WAIT_TIMEOUT_S, wait_until

KINDS = {0: "unspecified", 1: "internal", 2: "server", 3: "client"}
#: Codes of a span's status.
UNSET, OK, ERROR = 0, 1, 2


@dataclass(frozen=True)
class ReceivedSpan:
    """One span. Ids are in hexadecimal, times in nanoseconds."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    start: int
    end: int
    status: int
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    trace_state: str = ""

    def contains(self, other: ReceivedSpan) -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass
class Receiver:
    """The spans received so far."""

    port: int
    spans: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def trace(self, trace_id: str, spans: int = 1, timeout_s: float = WAIT_TIMEOUT_S) -> list[ReceivedSpan]:
        """Wait until a trace has so many spans, that of the request among them, which ends last.

        Return them in order of their start.
        """

        def received() -> list[ReceivedSpan]:
            return [span for span in tuple(self.spans) if span.trace_id == trace_id]

        def is_complete() -> bool:
            requests = [
                span for span in received() if span.kind == "server" and not span.service.endswith("-triton")
            ]
            return len(received()) >= spans and bool(requests)

        try:
            wait_until(is_complete, timeout_s, f"{spans} spans of {trace_id}")
        except AssertionError as error:
            names = [f"{span.service}: {span.name}" for span in received()]
            raise AssertionError(f"{error}; received {names}") from None
        return sorted(received(), key=lambda span: span.start)


class Handler(BaseHTTPRequestHandler):
    """Accepts ``POST /v1/traces`` with an OTLP body, and rejects all else."""

    receiver: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_json = self.headers["Content-Type"] == "application/json"
        spans = read_json(body) if is_json else read_protobuf(body)
        self.receiver.bodies.append(body)
        self.receiver.headers.append(dict(self.headers))
        self.receiver.spans.extend(spans)
        answer = b"{}" if is_json else ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if self.path == "/v1/traces" else 404)
        self.send_header("Content-Type", self.headers["Content-Type"])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def read_protobuf(body: bytes) -> list[ReceivedSpan]:
    """Return the spans of an ExportTraceServiceRequest."""
    return [
        ReceivedSpan(
            _values(resource.resource.attributes)["service.name"],
            span.name,
            KINDS[span.kind],
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code,
            _values(span.attributes),
            tuple((event.name, _values(event.attributes)) for event in span.events),
            span.trace_state,
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def read_json(body: bytes) -> list[ReceivedSpan]:
    """Return the spans of the same message in JSON, as Triton sends it: ids are in hexadecimal, not in base64."""
    document = json.loads(body)
    for span in (
        span
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ):
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message = ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    return read_protobuf(message.SerializeToString())


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port of loopback."""
    handler = type("BoundHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.receiver = receiver = Receiver(server.server_address[1])  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def stalled_collector() -> Iterator[int]:
    """Open a port that accepts connections and never reads from them, and yield its number."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield int(listener.getsockname()[1])
