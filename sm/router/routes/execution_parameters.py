"""``/execution-parameters``: how much batch transform may send at once."""

from __future__ import annotations

from flask import Blueprint, Response

from sm.router.answer import Answer, dumps
from sm.router.routes.responses import limit_bodies, respond
from sm.settings import Settings

#: MiB: the platform's default for one request, and its limit for all that are under way.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(settings: Settings) -> Blueprint:
    """The route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        return respond(Answer(dumps(parameters(settings))))

    return routes


def parameters(settings: Settings) -> dict[str, object]:
    """Return what is set; else as many requests as there are threads, within the platform's limit."""
    payload_mb = DEFAULT_PAYLOAD_MB if settings.max_payload_mb is None else settings.max_payload_mb
    # 0 is allowed: any size, in chunks.
    largest = max(1, min(int(payload_mb), settings.max_body // 2**20, MAX_TOTAL_MB)) if payload_mb else 0
    at_once = min(settings.worker_count * settings.threads, MAX_TOTAL_MB // max(1, largest))
    # Only if a strategy is set. The platform's default is MultiRecord, and the SageMaker SDK's local mode
    # accepts only that spelling, while containers use MULTI_RECORD.
    strategy = {"BatchStrategy": settings.batch_strategy} if settings.batch_strategy else {}
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        **strategy,
        "MaxPayloadInMB": largest,
    }
