"""A trace collector for OTLP over HTTP, which takes protobuf from the router and JSON from Triton."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from werkzeug import Request, Response

from tests.support.boxes import WAIT_TIMEOUT_S, wait_until
from tests.support.http_server import serving

KINDS = ("unspecified", "internal", "server", "client")
#: Codes of a span's status.
UNSET, OK, ERROR = 0, 1, 2
JSON = "application/json"


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

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def trace(self, trace_id: str, spans: int = 1, timeout_s: float = WAIT_TIMEOUT_S) -> list[ReceivedSpan]:
        """Wait until a trace has so many spans, that of the request among them, which ends last.

        Return them in order of their start.
        """

        def received() -> list[ReceivedSpan]:
            return [span for span in tuple(self.spans) if span.trace_id == trace_id]

        def is_complete() -> bool:
            kinds = {span.kind for span in received() if not span.service.endswith("-triton")}
            return len(received()) >= spans and "server" in kinds

        wait_until(is_complete, timeout_s, f"{spans} spans of {trace_id}")
        return sorted(received(), key=lambda span: span.start)

    def respond(self, request: Request) -> Response:
        """Accept ``POST /v1/traces`` with an OTLP body, and reject all else."""
        body = request.get_data()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        spans = read_json(body) if request.mimetype == JSON else read_protobuf(body)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers})
        self.spans.extend(spans)
        answer = b"{}" if request.mimetype == JSON else ExportTraceServiceResponse().SerializeToString()
        return Response(
            answer, 200 if request.path == "/v1/traces" else 404, content_type=request.content_type
        )


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
    scopes = [scope for resource in document["resourceSpans"] for scope in resource["scopeSpans"]]
    for span in (span for scope in scopes for span in scope["spans"]):
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message = ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    return read_protobuf(message.SerializeToString())


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port of loopback."""
    receiver = Receiver()
    with serving(receiver.respond) as receiver.url:
        yield receiver
