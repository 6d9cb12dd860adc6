"""``/ping``, ``/metrics`` and the parameters of batch transform: they answer while the data plane is full."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from sm.control.box_series import router_metrics
from sm.control.state import check_ready, triton_metrics
from sm.errors import NotReady, TooLarge
from sm.http.control_paths import MAX_BODY_BYTES, all_paths
from sm.http.messages import Answer
from sm.http.responses import respond
from sm.polling import SharedQuestion
from sm.run_state import Box
from sm.settings import Settings

#: More requests for ``/metrics`` get the same text: while series are collected, ``/ping`` is slower.
MAX_TEXT_AGE_S = 0.2
#: Seconds to collect them; after that a scrape gets the text of the last one. Prometheus waits for 10.
SCRAPE_TIMEOUT_S = 30.0
#: nginx's header for a request that no worker answered: whatever the state is now, the answer says why.
UNSERVED = "X-Trireme-Unserved"
#: SageMaker's default for the payload of one request, and its limit for all concurrent requests, in MiB.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(box: Box) -> Blueprint:
    """Create the routes of the control plane."""
    routes = Blueprint("control", __name__)
    limit_bodies(routes)
    text = SharedQuestion(lambda: router_metrics(box) + triton_metrics(box), MAX_TEXT_AGE_S, 0.0)

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        check_ready(box)
        if UNSERVED in request.headers:
            raise NotReady("no worker answered the request: one has ended, or they are being restarted")
        return respond(Answer(b""))

    @routes.get("/metrics")
    def metrics() -> Response:
        return respond(Answer(text.ask(SCRAPE_TIMEOUT_S), CONTENT_TYPE_LATEST))

    return routes


def limit_bodies(routes: Blueprint) -> None:
    """Refuse bodies with a Content-Length of more than the path's limit on these routes."""
    limits = {path.rule: path.max_body for path in all_paths()}

    @routes.before_request
    def check_size() -> None:
        limit = limits[request.url_rule.rule] if request.url_rule else MAX_BODY_BYTES
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
