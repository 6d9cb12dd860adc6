"""The routes that run a model: ``/invocations``, ``/models/<name>/invoke``, and boto3's local endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import MethodNotAllowed

from sm.errors import ClientFailed, ModelFailed, TriremeError, UnknownModel
from sm.http.messages import Answer, write_error
from sm.http.responses import request_id
from sm.router.wsgi import Service, respond

if TYPE_CHECKING:
    pass

OTHER_METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]


def blueprint(service: Service, local_endpoints: bool) -> Blueprint:
    """Return the routes besides :func:`sm.router.wsgi.direct`."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=OTHER_METHODS)
    def invocations() -> Response:
        raise MethodNotAllowed(valid_methods=["POST"])

    @routes.post("/models/<name>/invoke")
    def invoke(name: str) -> Response:
        try:
            return respond(service.answer(request.environ, model=name))
        except (ClientFailed, ModelFailed):
            if service.pipeline.registry.is_served(name):
                raise
            # The model was unloaded while the request ran, so its files are gone.
            raise UnknownModel(f"the model {name[:200]!r} was unloaded while it was invoked") from None

    if local_endpoints:

        @routes.route("/endpoints/<name>/invocations", methods=["POST"])
        def endpoint(name: str) -> Response:
            return respond_as_endpoint(name, lambda: service.answer(request.environ))

        @routes.route("/endpoints/<name>/invocations-response-stream", methods=["POST"])
        def response_stream(name: str) -> Response:
            return respond_as_endpoint(name, lambda: service.answer_in_parts(request.environ))

    return routes


def respond_as_endpoint(name: str, container: Callable[[], Answer]) -> Response:
    """Translate the container's answer as SageMaker does: every error is a 424 ``ModelError``."""
    try:
        answer = container()
    except TriremeError as error:
        answer = _model_error(write_error(error, request_id(request.environ)), name)
    answer.headers = {**answer.headers, "x-Amzn-Invoked-Production-Variant": "AllTraffic"}
    return respond(answer)


def _model_error(answer: Answer, endpoint: str) -> Answer:
    original = answer.read().decode()
    kind = "client" if answer.status < 500 else "server"
    body = {
        "Message": f'Received {kind} error ({answer.status}) from primary with message "{original}"',
        "OriginalStatusCode": answer.status,
        "OriginalMessage": original,
        "LogStreamArn": f"local:/endpoints/{endpoint}",
    }
    return Answer(orjson.dumps(body), status=424, headers={"x-amzn-ErrorType": "ModelError"})
