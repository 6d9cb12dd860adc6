"""The media types of each route are in one table: the routes, the OpenAPI document and the page have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flask import Flask, Response

from sm.http.media_types import ROUTES
from sm.http.openapi import document
from sm.http.responses import handle_errors
from sm.router.forms.table import Forms
from trireme_extensions.observe import dashboard

FORMS = Forms.load()
ALL_ROUTES = {**ROUTES, **FORMS.route_types, "GET /dashboard/data": dashboard.TYPES}

PAGE = Path(__file__).parents[3] / "docs/clients/http-api.md"
ROW = re.compile(r"\| `([A-Z]+ /\S+)` \| (.*) \| (.*) \|")


def cell(types: tuple[str, ...]) -> str:
    return ", ".join(f"`{kind}`" if "/" in kind else kind for kind in types) or "–"


def test_the_page_has_the_types_of_every_route() -> None:
    section = PAGE.read_text("utf-8").split("## Media types")[1].split("\n## ")[0]
    assert {match[1]: (match[2], match[3]) for match in ROW.finditer(section)} == {
        route: (cell(types.takes), cell(types.gives)) for route, types in ALL_ROUTES.items()
    }


@pytest.mark.parametrize("route", [route for route in ALL_ROUTES if " /v2/" not in route])
def test_the_openapi_document_has_every_route(route: str) -> None:
    method, path = route.split()
    assert method.lower() in document(forms=FORMS.schemas())["paths"][path]


@pytest.mark.parametrize(
    ("accept", "status"),
    [("", 200), ("text/html, application/json;q=0.1", 200), ("application/json;q=0, */*", 406)],
)
def test_a_route_without_a_model_negotiates_before_it_does_anything(accept: str, status: int) -> None:
    app, done = Flask("test"), []
    handle_errors(app)

    @app.delete("/models/<name>")
    def unload(name: str) -> Response:
        done.append(name)
        return Response("{}")

    answer = app.test_client().delete("/models/a", headers={"Accept": accept} if accept else {})
    assert (answer.status_code, bool(done)) == (status, status == 200)
    assert answer.content_type.startswith("application/json") or status == 200


def test_metrics_are_text_and_ping_has_no_type() -> None:
    app = Flask("test")
    handle_errors(app)
    app.add_url_rule("/metrics", "metrics", lambda: Response("a 1"))
    app.add_url_rule("/ping", "ping", lambda: Response(""))
    client = app.test_client()
    scraper = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    assert client.get("/metrics", headers={"Accept": scraper}).status_code == 200
    assert client.get("/metrics", headers={"Accept": "image/png"}).status_code == 406
    assert client.get("/ping", headers={"Accept": "image/png"}).status_code == 200
