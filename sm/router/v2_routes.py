"""``/v2/*``: Triton's own API, passed through. Requests that would change the server are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import unquote

import orjson
from flask import Blueprint, Request, Response, request
from werkzeug.exceptions import MethodNotAllowed

from sm import __version__
from sm.entry_points import advice
from sm.errors import Forbidden, NotFound
from sm.http.messages import JSON, Answer
from sm.invocation import running
from sm.router.forms.v2 import INFERENCE
from sm.router.invocation_routes import Router
from sm.router.triton_requests import without_request_token
from sm.router.wsgi import read_message, respond
from sm.triton.model_paths import model_in

#: The regions are the router's own, and their names would give access to them.
SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory\b")
SHARED_MEMORY_EXTENSIONS = {"system_shared_memory", "cuda_shared_memory"}
#: Where a request's WSGI environment stores its route, which names the span of its trace.
ROUTE = "trireme.route"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class V2Route(NamedTuple):
    """One of Triton's paths, as in https://github.com/triton-inference-server/server (src/http_server.cc)."""

    template: str
    pattern: re.Pattern[str]
    methods: tuple[str, ...]
    #: True if a POST would change the server for every caller.
    changes: bool


MODEL = "/v2/models/{name}"
MODELS = (MODEL, f"{MODEL}/versions/{{version}}")
STATUS, INFERENCES = ("", "/ready", "/config", "/stats"), ("infer", "generate", "generate_stream")
TEMPLATES = (
    ("GET HEAD", False, ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats")),
    ("GET HEAD", False, [model + verb for model in MODELS for verb in STATUS]),
    ("POST", False, [f"{model}/{verb}" for model in MODELS for verb in INFERENCES]),
    ("POST", False, ("/v2/repository/index", "/v2/repository/{repository}/index")),
    ("GET HEAD POST", True, ("/v2/logging", "/v2/trace/setting", f"{MODEL}/trace/setting")),
    ("POST", True, [f"/v2/repository/models/{{name}}/{verb}" for verb in ("load", "unload")]),
    ("POST", True, [f"/v2/repository/{{repository}}/models/{{name}}/{verb}" for verb in ("load", "unload")]),
)
#: Paths that say whether something is ready or alive.
HEALTH = re.compile(
    r"/v2/(?:health/(?:(?P<live>live)|ready)|models/(?P<name>[^/]+)(?:/versions/[^/]+)?/ready)/?"
)
ROUTES = [
    V2Route(template, re.compile(re.sub(r"\{\w+\}", "[^/]+", template)), tuple(methods.split()), changes)
    for methods, changes, templates in TEMPLATES
    for template in templates
]


def blueprint(router: Router) -> Blueprint:
    """Create Triton's routes."""
    routes = Blueprint("v2", __name__)

    @routes.route("/v2", methods=METHODS)
    @routes.route("/v2/<path:rest>", methods=METHODS)
    def pass_through(**_: str) -> Response:
        target = raw_target(request)
        path = target.partition("?")[0]
        request.environ[ROUTE] = check_allowed(request.method, path)
        inference = INFERENCE.fullmatch(path)
        if inference is not None:
            return respond(router.answer(request.environ, model=model_in(path), target=target))
        invocation = router.begin(request.environ)
        invocation.check()
        with running(invocation):
            message = read_message(request.environ, router.max_body, target=target)
            # Triton answers HEAD with a 405; GET has the same headers.
            method = "GET" if request.method == "HEAD" else request.method
            answer = router.flow.triton.pass_on(method, message, invocation)
        if (health := HEALTH.fullmatch(path)) and not answer.read():
            return respond(
                replace(answer, body=describe_health(health, answer.status == 200), content_type=JSON)
            )
        if path.rstrip("/") == "/v2":
            return respond(describe_box(answer))
        return respond(without_request_token(answer))

    return routes


def describe_health(path: re.Match[str], is_well: bool) -> bytes:
    """Return the body that the protocol has, and Triton leaves out: its clients at KServe read it."""
    name = {"name": unquote(path["name"])} if path["name"] else {}
    return orjson.dumps({**name, path["live"] or "ready": is_well})


def describe_box(answer: Answer) -> Answer:
    """Add the box's version to Triton's description of itself, and remove what callers may not use."""
    body = answer.body
    if answer.status != 200 or not isinstance(body, bytes) or not body:
        return answer
    description = {**orjson.loads(body), "trireme_version": __version__}
    description["extensions"] = [
        name for name in description.get("extensions", ()) if name not in SHARED_MEMORY_EXTENSIONS
    ]
    return replace(answer, body=orjson.dumps(description))


def check_allowed(method: str, path: str) -> str:
    """Return the template of the path's route; empty for a path that is left to Triton's 404.

    Raises:
        Forbidden: The request would change the server or open its memory.
        MethodNotAllowed: Triton has the path, but not with this method.
        NotFound: Triton has no such path, and the method is not a read.
    """
    if SHARED_MEMORY.match(path):
        raise Forbidden("shared memory with Triton is the box's own")
    route = next((route for route in ROUTES if route.pattern.fullmatch(path)), None)
    if route is None:
        if method not in ("GET", "HEAD"):
            raise NotFound(f"Triton has no such path{advice(path)}")
        return ""
    if method not in route.methods:
        raise MethodNotAllowed(valid_methods=route.methods)
    if method == "POST" and route.changes:
        raise Forbidden("this would change the server for every caller; models are loaded by POST /models")
    return route.template


def raw_target(incoming: Request) -> str:
    """Return path and query as the caller sent them, percent signs and all."""
    raw = incoming.environ.get("RAW_URI", "") or incoming.full_path.rstrip("?")
    return raw if raw.startswith("/") else f"/{raw.partition('://')[2].partition('/')[2]}"
