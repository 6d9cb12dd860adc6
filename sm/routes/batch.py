"""What batch transform asks before it sends anything: how much at once."""

from __future__ import annotations

from flask import Blueprint, Response

from sm.invocation import Answer, dumps
from sm.routes.answers import respond
from sm.settings import Settings

#: MiB: what the platform sends at a time unless told otherwise, and the most that may be under way in all.
USUAL, MOST = 6, 100


def blueprint(settings: Settings) -> Blueprint:
    """The route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)

    @routes.get("/execution-parameters")
    def execution_parameters() -> Response:
        return respond(Answer(dumps(parameters(settings))))

    return routes


def parameters(settings: Settings) -> dict[str, object]:
    """What is set; else as many at once as there are threads, as far as the platform allows it."""
    largest = max(1, min(int(settings.max_payload_mb or USUAL), settings.max_body // 2**20, MOST))
    at_once = min(settings.worker_count * settings.threads, MOST // largest)
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        "BatchStrategy": settings.batch_strategy,
        "MaxPayloadInMB": largest,
    }
