"""The application, and the routes that run a model.

Nearly all requests are a POST to ``/invocations``; they go past Flask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Flask, Response, request
from flask import Request as FlaskRequest
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.routing import MapAdapter

from sm.errors import ClientFailed, ModelFailed, TriremeError, UnknownModel
from sm.http.media_types import ROUTES
from sm.http.messages import Answer, write_error
from sm.http.responses import REQUEST_ID_KEY, error_answer, handle_errors, request_id, with_request_id
from sm.router.aws_frames import EVENT_STREAM, frames
from sm.router.request_flow import RequestFlow
from sm.router.request_types import HEADER_PREFIX, Message
from sm.router.running_invocation import LogSample, RunningInvocation
from sm.router.wsgi import is_disconnected, read_message, respond, send
from sm.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

#: The header that asks where a request's time went, and where WSGI has the listener of a traced request.
TIMING_HEADER, LISTENER_KEY = "HTTP_X_TRIREME_TIMING", "trireme.listener"


class Router(Flask):
    """The application: Flask, with a shortcut for the path of nearly all requests, and without host matching.

    Args:
        flow: Answers invocations.
        settings: Of the box.
        fronted: True if nginx is in front: it adds the request's id to each response, and its headers can be
            trusted (time of arrival, name of the API key).
    """

    def __init__(self, flow: RequestFlow, settings: Settings, fronted: bool) -> None:
        super().__init__("trireme")
        self.flow, self.fronted, self.sample = flow, fronted, LogSample(settings.log_sample)
        self.max_body = self.config["MAX_CONTENT_LENGTH"] = settings.max_body
        self.timeout, self.stream_timeout = settings.timeout, settings.longest_stream
        handle_errors(self, {**ROUTES, **flow.classifier.forms.route_types})

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("//"):  # nginx and Flask take it for one slash too
            path = environ["PATH_INFO"] = f"/{path.lstrip('/')}"
        start = start_response if self.fronted else with_request_id(environ, start_response)
        if path != "/invocations" or environ["REQUEST_METHOD"] != "POST":
            return self.wsgi_app(environ, start)
        try:
            read = partial(read_message, environ, self.max_body)
            return send(self.flow.answer(self.begin(environ), read), environ, start)
        except Exception as error:
            return send(error_answer(error, environ), environ, start)

    def answer(self, environ: WSGIEnvironment, model: str = "", target: str = "") -> Answer:
        """Answer a request that runs a model.

        Args:
            environ: Of the request.
            model: The model in the path.
            target: Path and query of a request in Triton's own API.
        """
        return self.flow.answer(
            self.begin(environ), partial(read_message, environ, self.max_body, model, target)
        )

    def answer_in_parts(self, environ: WSGIEnvironment) -> Answer:
        """Answer a request of the runtime's streaming call, in AWS's event-stream frames."""
        return frame_answer(
            self.flow.answer(
                self.begin(environ), lambda: with_runtime_accept(read_message(environ, self.max_body))
            )
        )

    def begin(self, environ: WSGIEnvironment) -> RunningInvocation:
        """Begin the invocation of a request. Its time includes the wait for a worker, if nginx is in front.

        Without nginx, callers could set its headers themselves.
        """
        waited, arrival, fronted = 0.0, "", self.fronted
        if fronted:
            if identity := environ.get("HTTP_X_TRIREME_REQUEST_ID"):
                environ[REQUEST_ID_KEY] = identity  # nginx has checked it
            try:
                arrival = environ["HTTP_X_TRIREME_START"]
                waited = max(0.0, time.time() - float(arrival))
            except (KeyError, ValueError):
                waited = 0.0
        return RunningInvocation(
            time.monotonic() + self.timeout - waited,
            partial(is_disconnected, environ.get("gunicorn.socket")),
            environ.get(REQUEST_ID_KEY) or request_id(environ),
            listener=environ.get(LISTENER_KEY),
            arrival=arrival,
            sample=self.sample,
            waited=waited,
            api_key_name=environ.get("HTTP_X_TRIREME_KEY_NAME", "") if fronted else "",
            address=environ.get("HTTP_X_TRIREME_ADDRESS" if fronted else "REMOTE_ADDR", ""),
            wants_timing=TIMING_HEADER in environ,
        )

    def create_url_adapter(self, request: FlaskRequest | None) -> MapAdapter | None:
        # Only werkzeug's own adapter tells a WebSocket's routes from the others.
        if request is None or "HTTP_UPGRADE" in request.environ:
            return super().create_url_adapter(request)
        return MapAdapter(self.url_map, "localhost", "/", "", "http", request.path, request.method)


OTHER_METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]


def blueprint(router: Router) -> Blueprint:
    """Return the routes that run a model, besides the router's shortcut."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=OTHER_METHODS)
    def invocations() -> Response:
        raise MethodNotAllowed(valid_methods=["POST"])

    @routes.post("/models/<name>/invoke")
    def invoke(name: str) -> Response:
        try:
            return respond(router.answer(request.environ, model=name))
        except (ClientFailed, ModelFailed):
            if router.flow.models.known(name):
                raise
            # The model was unloaded while the request ran, so its files are gone.
            raise UnknownModel(f"the model {name[:200]!r} was unloaded while it was invoked") from None

    @routes.route("/endpoints/<name>/invocations", methods=["POST"])
    def endpoint(name: str) -> Response:
        return respond_as_endpoint(name, lambda: router.answer(request.environ))

    @routes.route("/endpoints/<name>/invocations-response-stream", methods=["POST"])
    def response_stream(name: str) -> Response:
        return respond_as_endpoint(name, lambda: router.answer_in_parts(request.environ))

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
