"""``/v2/*``: Triton's own API, passed through. Requests that would change the server are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote

import orjson
from flask import Blueprint, Request, Response, request

from sm import __version__
from sm.errors import Forbidden
from sm.router import triton_requests
from sm.router.admission import UNKNOWN, Admission, FairGate
from sm.router.answer import Answer
from sm.router.invocation import Message
from sm.router.routes import request_handling
from sm.router.routes.request_log import RequestLog, describe_refusal
from sm.router.routes.responses import request_id, respond
from sm.triton.http_proxy import Request as UpstreamRequest
from sm.triton.http_proxy import Upstream, end_to_end

#: The paths that run a model.
INFERENCE = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")
#: The only other path that accepts POST: it lists the models. All others would change the server.
INDEX = "/v2/repository/index"
#: The regions are the router's own, and their names would give access to them.
SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory\b")


def blueprint(
    upstream: Upstream,
    timeout: float,
    stream_timeout: float,
    fronted: bool,
    max_body: int,
    gate: FairGate,
    is_served: Callable[[str], bool],
    requests: RequestLog,
) -> Blueprint:
    """Create Triton's routes.

    Args:
        upstream: Triton's HTTP port.
        timeout: Seconds for a request.
        stream_timeout: Seconds for a streamed request.
        fronted: True if nginx is in front.
        max_body: Bytes of a body.
        gate: Admits requests that run a model.
        is_served: True for the name of a served model.
        requests: Decides which requests are logged.
    """
    routes = Blueprint("v2", __name__)

    @routes.route("/v2", methods=["GET", "POST"])
    @routes.route("/v2/<path:rest>", methods=["GET", "POST"])
    def pass_through(**_: str) -> Response:
        target = raw_target(request)
        inference = INFERENCE.fullmatch(target.partition("?")[0])
        check_allowed(request.method, target, inference is not None)
        if inference is None:
            with request_handling.within_deadline(request.environ, timeout, fronted):
                answer = _send(upstream, request_handling.read_message(request.environ, max_body), target)
                if target.partition("?")[0].rstrip("/") == "/v2":
                    return respond(add_version(answer))
                return respond(triton_requests.without_request_token(answer))
        with request_handling.RequestRecorder(
            request_id(request.environ),
            request_handling.api_key_name(request.environ, fronted),
            requests,
            request_handling.arrival(request.environ, fronted),
        ) as recorder:
            seconds = stream_timeout if inference[3] == "generate_stream" else timeout
            with request_handling.within_deadline(request.environ, seconds, fronted):
                model = unquote(inference[1])
                recorder.admission = Admission(gate)
                recorder.admission.enter(model if is_served(model) else UNKNOWN)
                message = request_handling.read_message(request.environ, max_body)
                recorder.bytes_in = len(message.body)
                answer = _send(upstream, message, target)
                recorder.version = (inference[2] or "").removeprefix("/versions/")
                recorder.refusal = describe_refusal(answer)
                if recorder.refusal is None or is_served(model):
                    # Any other name must not become a label of the metrics.
                    recorder.model = model
                return respond(request_handling.attach_to_stream(answer, recorder))

    return routes


def add_version(answer: Answer) -> Answer:
    """Add the box's version to the server's metadata, whose ``version`` is Triton's."""
    body = answer.body
    if answer.status != 200 or not isinstance(body, bytes) or not body:
        return answer
    return replace(answer, body=orjson.dumps({**orjson.loads(body), "trireme_version": __version__}))


def check_allowed(method: str, target: str, is_inference: bool) -> None:
    """Raise :class:`Forbidden` for requests that would change the server or open its memory."""
    path = target.partition("?")[0]
    if SHARED_MEMORY.match(path):
        raise Forbidden("shared memory with Triton is the box's own")
    if method == "POST" and not is_inference and path != INDEX:
        raise Forbidden("this would change the server for every caller; models are loaded by POST /models")


def raw_target(incoming: Request) -> str:
    """Return path and query as the caller sent them: Triton decodes percent signs itself."""
    raw = incoming.environ.get("RAW_URI", "") or incoming.full_path.rstrip("?")
    return raw if raw.startswith("/") else f"/{raw.partition('://')[2].partition('/')[2]}"


def _send(upstream: Upstream, message: Message, target: str) -> Answer:
    # Triton answers HEAD with a 405; GET has the same headers.
    method = "GET" if request.method == "HEAD" else request.method
    upstream_request = UpstreamRequest(method, target, message.body, end_to_end(message.headers))
    return triton_requests.to_v2_answer(upstream.send(upstream_request))
