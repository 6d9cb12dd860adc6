"""A proxy in front of moto that changes some of SageMaker's responses and answers some actions itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import requests
from flask import Blueprint, Response, request

Action = Callable[[dict[str, Any]], dict[str, Any]]
Amendment = Callable[[dict[str, Any]], None]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
#: Headers that are not forwarded: they belong to one connection, or the server writes them itself.
HOP_BY_HOP_HEADERS = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "expect",
    "date",
    "server",
}


class ValidationFailed(Exception):
    """SageMaker's API rejects a call. boto3's caller sees the message."""


def blueprint(
    moto: str, actions: dict[str, Action], amendments: dict[str, Amendment], lock: AbstractContextManager[Any]
) -> Blueprint:
    """Forward every request that no other route takes to ``moto`` (a URL).

    Args:
        moto: The URL of moto's server.
        actions: Actions of SageMaker's API that are answered here, by name.
        amendments: Changes to moto's successful responses, by action.
        lock: Held during each call of SageMaker's API, so that nobody sees a half-written record.
    """
    routes = Blueprint("moto_proxy", __name__)
    session = requests.Session()
    # Without this machine's proxy and credentials.
    session.trust_env = False

    @routes.route("/", defaults={"path": ""}, methods=METHODS)
    @routes.route("/<path:path>", methods=METHODS)
    def forward(path: str) -> Response:
        service, _, action = request.headers.get("X-Amz-Target", "").partition(".")
        if service != "SageMaker":
            return _build_response(_forward_to_moto(session, moto))
        with lock:
            if action in actions:
                return _run_action(actions[action])
            response = _forward_to_moto(session, moto)
            amend = amendments.get(action) if response.status_code == 200 else None
            return _build_response(response, amend)

    return routes


def _forward_to_moto(session: requests.Session, moto: str) -> requests.Response:
    return session.request(
        request.method,
        f"{moto}{request.full_path.rstrip('?')}" if request.query_string else f"{moto}{request.path}",
        data=request.get_data(cache=False),
        headers={name: value for name, value in request.headers if name.lower() not in HOP_BY_HOP_HEADERS},
        allow_redirects=False,
    )


def _build_response(response_of_moto: requests.Response, amend: Amendment | None = None) -> Response:
    headers = [
        (name, value)
        for name, value in response_of_moto.headers.items()
        if name.lower() not in HOP_BY_HOP_HEADERS
    ]
    content = response_of_moto.content
    if amend is not None:
        body = json.loads(content)
        amend(body)
        content = json.dumps(body).encode()
    response = Response(content, response_of_moto.status_code, headers)
    if request.method == "HEAD":
        response.headers["Content-Length"] = response_of_moto.headers.get("Content-Length", "0")
    return response


def _run_action(action: Action) -> Response:
    try:
        status, body = 200, action(request.get_json(force=True))
    except ValidationFailed as error:
        status, body = 400, {"__type": "ValidationException", "message": str(error)}
    return Response(json.dumps(body), status, content_type="application/x-amz-json-1.1")
