"""``/openapi.json``, and the playground at ``/``."""

from __future__ import annotations

from flask import Blueprint, Response

from sm.router.answer import Answer, dumps
from sm.router.openapi.document import document
from sm.router.routes.responses import limit_bodies, respond
from sm.run_state import Box
from sm.settings import HERE

PAGE = HERE / "sm" / "router" / "page" / "index.html"
#: The page is whole in itself and talks to this box alone.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self' data:"
)


def blueprint(box: Box) -> Blueprint:
    """Two pages of the control plane."""
    routes = Blueprint("pages", __name__)
    limit_bodies(routes)

    @routes.get("/openapi.json")
    def openapi() -> Response:
        return respond(Answer(openapi_document(box)))

    @routes.get("/")
    def playground() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        return respond(Answer(PAGE.read_bytes(), "text/html; charset=utf-8", headers=headers))

    return routes


def openapi_document(box: Box) -> bytes:
    """The workers' document; until they have written it, what holds for every box."""
    try:
        return box.openapi_file.read_bytes()
    except FileNotFoundError:
        return dumps(document([]))
