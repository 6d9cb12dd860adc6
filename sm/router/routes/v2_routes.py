"""``/v2/*``: Triton's own API, passed through unchanged except for what callers may not do."""

from __future__ import annotations

import re

from flask import Blueprint, Request, Response, request

from sm.errors import Forbidden
from sm.router import triton_requests
from sm.router.answer import Answer
from sm.router.invocation import Message
from sm.router.routes import request_handling
from sm.router.routes.responses import request_id, respond
from sm.triton.http_proxy import Request as Asked
from sm.triton.http_proxy import Upstream, end_to_end

#: What may be posted; everything else that can be changes the server for all callers.
WORK = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")
INDEX = "/v2/repository/index"
#: Regions are the router's own, and their names are keys to them.
SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory\b")


def blueprint(upstream: Upstream, timeout: float, stream_timeout: float, fronted: bool) -> Blueprint:
    """Triton's routes; times in seconds."""
    routes = Blueprint("v2", __name__)

    @routes.route("/v2", methods=["GET", "POST"])
    @routes.route("/v2/<path:rest>", methods=["GET", "POST"])
    def passed(**_: str) -> Response:
        target = raw_target(request)
        work = WORK.fullmatch(target.partition("?")[0])
        check(request.method, target, work is not None)
        if work is None:
            with request_handling.within_deadline(request.environ, timeout, fronted):
                answer = _send(upstream, request_handling.read_message(request), target)
                return respond(triton_requests.without_request_token(answer))
        with request_handling.RequestRecorder(
            request_id(request.environ), request_handling.api_key_name(request.environ, fronted)
        ) as seen:
            seconds = stream_timeout if work[3] == "generate_stream" else timeout
            with request_handling.within_deadline(request.environ, seconds, fronted):
                answer = _send(upstream, request_handling.read_message(request), target)
                seen.model = work[1]
                return respond(request_handling.attach_to_stream(answer, seen))

    return routes


def check(method: str, target: str, work: bool) -> None:
    """:class:`Forbidden` for what would change the server, or open its memory, for everyone."""
    path = target.partition("?")[0]
    if SHARED_MEMORY.match(path):
        raise Forbidden("shared memory with Triton is the box's own")
    if method == "POST" and not work and path != INDEX:
        raise Forbidden("this would change the server for every caller; models are loaded by POST /models")


def raw_target(incoming: Request) -> str:
    """Path and query as they were sent: Triton reads the percent signs itself."""
    raw = incoming.environ.get("RAW_URI", "") or incoming.full_path.rstrip("?")
    return raw if raw.startswith("/") else f"/{raw.partition('://')[2].partition('/')[2]}"


def _send(upstream: Upstream, message: Message, target: str) -> Answer:
    # Triton answers HEAD with a 405; GET has the headers that are asked for.
    method = "GET" if request.method == "HEAD" else request.method
    asked = Asked(method, target, message.body, end_to_end(message.headers))
    return triton_requests.forwarded_headers(upstream.send(asked))
