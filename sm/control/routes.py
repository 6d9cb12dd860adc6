"""``/ping``, ``/models`` and ``/metrics``, which must answer while the data plane is full."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import orjson
from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sm.control.box_series import BoxSeries
from sm.control.state import check_ready, is_ready, triton_metrics
from sm.errors import TooLarge
from sm.http.messages import Answer
from sm.http.responses import respond
from sm.run_state import MAX_CONTROL_BODY_BYTES, Box
from sm.settings import Settings

#: More requests for ``/metrics`` get the last text again: while series are collected, ``/ping`` is slower.
MAX_SCRAPES_PER_S = 5
#: SageMaker's default for the payload of one request, and its limit for all concurrent requests, in MiB.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(box: Box) -> Blueprint:
    """Create the routes of the control plane."""
    routes = Blueprint("control", __name__)
    limit_bodies(routes)
    scrapes = ScrapeCache(lambda: router_metrics(box) + triton_metrics(box))

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        check_ready(box)
        return respond(Answer(b""))

    @routes.get("/metrics")
    def metrics() -> Response:
        return respond(Answer(scrapes.text(), CONTENT_TYPE_LATEST))

    return routes


class ScrapeCache:
    """The text of ``/metrics``. One thread at a time collects it; the text is less than a second old."""

    def __init__(self, collect: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect, self._clock = collect, clock
        self._lock = threading.Lock()
        self._collecting = False
        #: When the last collections started.
        self._starts: deque[float] = deque(maxlen=MAX_SCRAPES_PER_S)
        self._text: bytes | None = None

    def text(self) -> bytes:
        """Return a new text; the last one while another thread collects, or if the limit is reached."""
        with self._lock:
            limit_reached = len(self._starts) == MAX_SCRAPES_PER_S and self._clock() - self._starts[0] < 1
            if self._text is not None and (limit_reached or self._collecting):
                return self._text
            self._starts.append(self._clock())
            self._collecting = True
        try:
            self._text = self._collect()
        finally:
            self._collecting = False
        return self._text


def router_metrics(box: Box) -> bytes:
    """Return the sums of all workers' series, and the series of the whole box."""
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: is_ready(box)))
    return generate_latest(registry)


def limit_bodies(routes: Blueprint, limit: int = MAX_CONTROL_BODY_BYTES) -> None:
    """Refuse bodies with a Content-Length of more than ``limit`` bytes on these routes."""

    @routes.before_request
    def check_size() -> None:
        if (request.content_length or 0) > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes this box accepts here")


def execution_parameters(settings: Settings) -> Blueprint:
    """Create the route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def read() -> Response:
        return respond(Answer(orjson.dumps(batch_parameters(settings))))

    return routes


def batch_parameters(settings: Settings) -> dict[str, object]:
    """Return the parameters; by default as many requests as there are threads, within SageMaker's limit."""
    payload_mb = DEFAULT_PAYLOAD_MB if settings.max_payload_mb is None else settings.max_payload_mb
    # 0 means payloads of any size, sent in chunks.
    max_payload_mb = (
        max(1, min(int(payload_mb), settings.max_body // 2**20, MAX_TOTAL_MB)) if payload_mb else 0
    )
    at_once = min(settings.worker_count * settings.threads, MAX_TOTAL_MB // max(1, max_payload_mb))
    # Leave it out if it is not set, as no spelling of the default suits everybody: the local mode of the
    # SageMaker SDK accepts only MultiRecord, and containers use MULTI_RECORD.
    strategy = {"BatchStrategy": settings.batch_strategy} if settings.batch_strategy else {}
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        **strategy,
        "MaxPayloadInMB": max_payload_mb,
    }
