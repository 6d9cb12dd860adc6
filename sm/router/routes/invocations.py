"""The routes that run a model: ``/invocations``, ``/models/<name>/invoke``, and boto3's local endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import MethodNotAllowed

from sm.errors import ClientFailed, ModelFailed, TriremeError, UnknownModel
from sm.http.messages import Answer, write_error
from sm.http.responses import error_answer, request_id
from sm.router.invocation import HEADER_PREFIX, Message
from sm.router.pipeline import Pipeline
from sm.router.request_log import RequestLog
from sm.router.routes.reading import invocation_of, read_message
from sm.router.routes.responses import respond, send
from sm.router.streaming.aws_eventstream import EVENT_STREAM, frames

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

OTHER_METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Service:
    """The pipeline as the routes call it."""

    pipeline: Pipeline
    #: Decides which requests are logged.
    requests: RequestLog
    #: Bytes of a request's body, and seconds of an invocation, at most.
    max_body: int
    timeout: float
    #: Seconds of a streamed invocation, at most.
    stream_timeout: float
    #: True if nginx is in front, so that its headers can be trusted: time of arrival, name of the API key.
    fronted: bool

    def answer(self, environ: WSGIEnvironment, model: str = "", target: str = "") -> Answer:
        """Answer a request that runs a model.

        Args:
            environ: Of the request.
            model: The model in the path.
            target: Path and query of a request in Triton's own API.
        """
        return self.pipeline.answer(
            invocation_of(environ, self.requests, self.timeout, self.fronted),
            lambda: read_message(environ, self.max_body, model, target),
        )

    def answer_in_parts(self, environ: WSGIEnvironment) -> Answer:
        """Answer a request of the runtime's streaming call, in AWS's event-stream frames."""
        return frame_answer(
            self.pipeline.answer(
                invocation_of(environ, self.requests, self.timeout, self.fronted),
                lambda: with_runtime_accept(read_message(environ, self.max_body)),
            )
        )


def direct(service: Service) -> dict[str, WSGIApplication]:
    """Return the WSGI handlers of POST by path, which :class:`sm.router.app.Router` calls without Flask."""

    def invoke(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return send(service.answer(environ), environ, start_response)
        except Exception as error:
            return send(error_answer(error, environ), environ, start_response)

    return {"/invocations": invoke}


def blueprint(service: Service, local_endpoints: bool) -> Blueprint:
    """Return the routes besides :func:`direct`."""
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


def with_runtime_accept(message: Message) -> Message:
    """Take the Accept header from the one that the runtime's streaming call has in its place."""
    accept = message.headers.get(f"{HEADER_PREFIX}accept", "")
    return message._replace(headers={**message.headers, "accept": accept}, in_parts=True)


def frame_answer(answer: Answer) -> Answer:
    """Encode an answer as frames: one for each chunk of a stream, or as many as a complete body needs."""
    chunks = iter((answer.body,)) if isinstance(answer.body, bytes) else answer.body
    headers = {**answer.headers, "X-Amzn-SageMaker-Content-Type": answer.content_type}
    return Answer(frames(chunks), EVENT_STREAM, headers=headers)
