"""The same app under any WSGI server: ``gunicorn --worker-class gthread --threads 8 gateway.wsgi:app``.

API Gateway's part is played here: a request becomes the event that Lambda would get.
"""

from __future__ import annotations

import base64
import sys
import uuid
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

# Chalice's own layout: the project's folder is where modules are looked for.
sys.path.insert(0, str(Path(__file__).parent))

from app import app as chalice_app
from chalicelib.front import failure

from sm.errors import BadInput, NotFound, TooLarge

__all__ = ["app"]

Environ = dict[str, Any]
Start = Callable[[str, list[tuple[str, str]]], object]
#: Bytes: what API Gateway takes (10 MB) and more, for no caller is to fill the memory. The setting says less.
LARGEST = 64 * 2**20


class Context:
    """What is used of Lambda's context; there is no Lambda whose time could end."""

    def __init__(self) -> None:
        self.aws_request_id = uuid.uuid4().hex


def app(environ: Environ, start: Start) -> Iterable[bytes]:
    context = Context()
    answer = _answer(environ, context)
    body = _bytes(answer)
    headers = {**answer["headers"], "Content-Length": str(len(body))}
    status = answer["statusCode"]
    start(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
    return [body]


def _answer(environ: Environ, context: Context) -> dict[str, Any]:
    try:
        event = _event(environ)
    except (BadInput, NotFound, TooLarge) as error:
        said: dict[str, Any] = failure(error, context.aws_request_id).to_dict()
        return said
    made: dict[str, Any] = chalice_app(event, context)
    return made


def _event(environ: Environ) -> dict[str, Any]:
    path = environ.get("PATH_INFO", "/")
    route, arguments = _route(path)
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    headers = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return {
        "requestContext": {"httpMethod": environ["REQUEST_METHOD"], "resourcePath": route, "path": path},
        "headers": headers,
        "pathParameters": arguments,
        "stageVariables": {},
        "multiValueQueryStringParameters": query or None,
        "body": _body(environ),
    }


def _route(path: str) -> tuple[str, dict[str, str]]:
    """The route that a path fits, with its parts; :class:`NotFound` if there is none."""
    parts = path.rstrip("/").split("/") if path != "/" else ["", ""]
    for route in chalice_app.routes:
        names = route.split("/")
        pairs = list(zip(names, parts, strict=True)) if len(names) == len(parts) else []
        if pairs and all((part and name.startswith("{")) or name == part for name, part in pairs):
            return route, {name[1:-1]: part for name, part in pairs if name.startswith("{")}
    raise NotFound(f"no such path: {path[:200]}")


def _body(environ: Environ) -> bytes:
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdigit():
        raise BadInput("Content-Length is no number")
    if int(length) > LARGEST:
        raise TooLarge("the body is larger than this gateway accepts")
    body: bytes = environ["wsgi.input"].read(int(length))
    return body


def _bytes(answer: dict[str, Any]) -> bytes:
    body = answer["body"]
    if answer.get("isBase64Encoded"):
        return base64.b64decode(body)
    return body.encode() if isinstance(body, str) else bytes(body or b"")
