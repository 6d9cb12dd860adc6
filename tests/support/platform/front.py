"""The one address of the fake AWS: moto's answers, and what the host knows better about endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
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


def blueprint(
    moto: str, actions: dict[str, Action], amended: dict[str, Amend], alone: AbstractContextManager[Any]
) -> Blueprint:
    """Everything that no other route takes goes to ``moto`` (a URL) as it came.

    ``actions`` of SageMaker are answered here; the answers to those ``amended`` are changed on their way back.
    Both happen ``alone``: nobody sees a record that is half written.
    """
    routes = Blueprint("front", __name__)
    connections = requests.Session()
    # Not this machine's proxy, nor its credentials.
    connections.trust_env = False

    @routes.route("/", defaults={"path": ""}, methods=METHODS)
    @routes.route("/<path:path>", methods=METHODS)
    def forward(path: str) -> Response:
        service, _, action = request.headers.get("X-Amz-Target", "").partition(".")
        if service != "SageMaker":
            return _response(_forwarded(connections, moto))
        with alone:
            if action in actions:
                return _acted(actions[action])
            answer = _forwarded(connections, moto)
            change = amended.get(action) if answer.status_code == 200 else None
            return _response(answer, change)

    return routes


def _forwarded(connections: requests.Session, moto: str) -> requests.Response:
    return connections.request(
        request.method,
        f"{moto}{request.full_path.rstrip('?')}" if request.query_string else f"{moto}{request.path}",
        data=request.get_data(cache=False),
        headers={name: value for name, value in request.headers if name.lower() not in HOP},
        allow_redirects=False,
    )


def _response(answer: requests.Response, change: Amend | None = None) -> Response:
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP]
    content = answer.content
    if change is not None:
        told = json.loads(content)
        change(told)
        content = json.dumps(told).encode()
    response = Response(content, answer.status_code, headers)
    if request.method == "HEAD":
        response.headers["Content-Length"] = answer.headers.get("Content-Length", "0")
    return response


def _acted(action: Action) -> Response:
    try:
        status, told = 200, action(request.get_json(force=True))
    except Invalid as error:
        status, told = 400, {"__type": "ValidationException", "message": str(error)}
    return Response(json.dumps(told), status, content_type="application/x-amz-json-1.1")
