"""The one address of the fake AWS: moto's answers, and what the host knows better about endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import requests
from flask import Blueprint, Response, request

Action = Callable[[dict[str, Any]], dict[str, Any]]
Amend = Callable[[dict[str, Any]], None]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
#: Of one connection only, or made anew.
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "date", "server"}


class Invalid(Exception):
    """The control plane refuses; the sentence is the one that boto3's caller sees."""


def blueprint(moto: str, actions: dict[str, Action], amended: dict[str, Amend]) -> Blueprint:
    """Everything that no other route takes goes to ``moto`` (a URL) as it came.

    ``actions`` of SageMaker are answered here; the answers to those ``amended`` are changed on their way back.
    """
    routes = Blueprint("front", __name__)
    connections = requests.Session()
    # Not this machine's proxy, nor its credentials.
    connections.trust_env = False

    @routes.route("/", defaults={"path": ""}, methods=METHODS)
    @routes.route("/<path:path>", methods=METHODS)
    def forward(path: str) -> Response:
        action = request.headers.get("X-Amz-Target", "").removeprefix("SageMaker.")
        if action in actions:
            return _acted(actions[action])
        answer = connections.request(
            request.method,
            f"{moto}{request.full_path.rstrip('?')}" if request.query_string else f"{moto}{request.path}",
            data=request.get_data(cache=False),
            headers={name: value for name, value in request.headers if name.lower() not in HOP},
            allow_redirects=False,
        )
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP]
        content = answer.content
        if action in amended and answer.status_code == 200:
            told = json.loads(content)
            amended[action](told)
            content = json.dumps(told).encode()
        response = Response(content, answer.status_code, headers)
        if request.method == "HEAD":
            response.headers["Content-Length"] = answer.headers.get("Content-Length", "0")
        return response

    return routes


def _acted(action: Action) -> Response:
    try:
        status, told = 200, action(request.get_json(force=True))
    except Invalid as error:
        status, told = 400, {"__type": "ValidationException", "message": str(error)}
    return Response(json.dumps(told), status, content_type="application/x-amz-json-1.1")
