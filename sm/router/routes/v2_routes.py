"""``/v2/*``: Triton's own API, passed through unchanged except for what callers may not do."""

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
from sm.triton.http_proxy import Request as Asked
from sm.triton.http_proxy import Upstream, end_to_end

#: Allowed POST requests; any other POST would change the server for all callers.
WORK = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")
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
    """Return Triton's routes; times in seconds. Requests that run no model do not wait at ``gate``."""
    routes = Blueprint("v2", __name__)

    @routes.route("/v2", methods=["GET", "POST"])
    @routes.route("/v2/<path:rest>", methods=["GET", "POST"])
    def passed(**_: str) -> Response:
        target = raw_target(request)
        work = WORK.fullmatch(target.partition("?")[0])
        check(request.method, target, work is not None)
        if work is None:
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
            seconds = stream_timeout if work[3] == "generate_stream" else timeout
            with request_handling.within_deadline(request.environ, seconds, fronted):
                model = unquote(work[1])
                recorder.admission = Admission(gate)
                recorder.admission.enter(model if is_served(model) else UNKNOWN)
                message = request_handling.read_message(request.environ, max_body)
                recorder.bytes_in = len(message.body)
                answer = _send(upstream, message, target)
                recorder.version = (work[2] or "").removeprefix("/versions/")
                recorder.refusal = describe_refusal(answer)
                if recorder.refusal is None or is_served(model):
                    # A name that nobody serves would become a label.
                    recorder.model = model
                return respond(request_handling.attach_to_stream(answer, recorder))

    return routes


def add_version(answer: Answer) -> Answer:
    """Add the box's version to the server's metadata, whose ``version`` is Triton's."""
    body = answer.body
    if answer.status != 200 or not isinstance(body, bytes) or not body:
        return answer
    return replace(answer, body=orjson.dumps({**orjson.loads(body), "trireme_version": __version__}))


def check(method: str, target: str, work: bool) -> None:
    """Raise :class:`Forbidden` for requests that would change the server or open its memory."""
    path = target.partition("?")[0]
    if SHARED_MEMORY.match(path):
        raise Forbidden("shared memory with Triton is the box's own")
    if method == "POST" and not work and path != INDEX:
        raise Forbidden("this would change the server for every caller; models are loaded by POST /models")


def raw_target(incoming: Request) -> str:
    """Return path and query as they were sent: Triton decodes percent signs itself."""
    raw = incoming.environ.get("RAW_URI", "") or incoming.full_path.rstrip("?")
    return raw if raw.startswith("/") else f"/{raw.partition('://')[2].partition('/')[2]}"


def _send(upstream: Upstream, message: Message, target: str) -> Answer:
    # Triton answers HEAD with a 405; GET has the same headers.
    method = "GET" if request.method == "HEAD" else request.method
    upstream_request = Asked(method, target, message.body, end_to_end(message.headers))
    return triton_requests.forwarded_headers(upstream.send(upstream_request))
