"""``/execution-parameters``: how much batch transform may send at once."""

from __future__ import annotations

from flask import Blueprint, Response

from sm.router.answer import Answer, dumps
from sm.router.routes.responses import limit_bodies, respond
from sm.settings import Settings

#: MiB: what the platform sends at a time unless told otherwise, and the most that may be under way in all.
USUAL, MOST = 6, 100


def blueprint(settings: Settings) -> Blueprint:
    """The route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        return respond(Answer(dumps(parameters(settings))))

    return routes


def parameters(settings: Settings) -> dict[str, object]:
    """What is set; else as many at once as there are threads, as far as the platform allows it."""
    wanted = USUAL if settings.max_payload_mb is None else settings.max_payload_mb
    # 0 is a size as well: any, in chunks.
    largest = max(1, min(int(wanted), settings.max_body // 2**20, MOST)) if wanted else 0
    at_once = min(settings.worker_count * settings.threads, MOST // max(1, largest))
    # A strategy only where one is set. The platform's default is MultiRecord anyway, and the SageMaker SDK's
    # local mode takes no spelling but that, where containers say MULTI_RECORD.
    strategy = {"BatchStrategy": settings.batch_strategy} if settings.batch_strategy else {}
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        **strategy,
        "MaxPayloadInMB": largest,
    }
