"""``/execution-parameters``: how many requests batch transform may send at once, and of which size."""

from __future__ import annotations

from flask import Blueprint, Response

from sm.router.answer import Answer, dumps
from sm.router.routes.responses import limit_bodies, respond
from sm.settings import Settings

#: SageMaker's default for the payload of one request, and its limit for all concurrent requests, in MiB.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(settings: Settings) -> Blueprint:
    """Create the route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        return respond(Answer(dumps(parameters(settings))))

    return routes


def parameters(settings: Settings) -> dict[str, object]:
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
