"""``/endpoints/<name>/invocations-response-stream``: answers in AWS's event-stream frames."""

from __future__ import annotations

from flask import Blueprint, Response, request

from sm.router.answer import Answer
from sm.router.routes.invocations import Service, handle_invocation, respond_as_endpoint
from sm.router.streaming.aws_eventstream import EVENT_STREAM, frames


def blueprint(service: Service) -> Blueprint:
    """Create the route of boto3's ``invoke_endpoint_with_response_stream``."""
    routes = Blueprint("streams", __name__)

    @routes.route("/endpoints/<name>/invocations-response-stream", methods=["POST"])
    def endpoint(name: str) -> Response:
        return respond_as_endpoint(
            name, lambda: frame_answer(handle_invocation(service, request.environ, in_parts=True))
        )

    return routes


def frame_answer(answer: Answer) -> Answer:
    """Encode an answer as frames: one for each chunk of a stream, or as many as a complete body needs."""
    chunks = iter((answer.body,)) if isinstance(answer.body, bytes) else answer.body
    headers = {**answer.headers, "X-Amzn-SageMaker-Content-Type": answer.content_type}
    return Answer(frames(chunks), EVENT_STREAM, headers=headers)
