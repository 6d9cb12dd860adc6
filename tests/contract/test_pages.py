"""The pages for people: the OpenAPI document and the playground."""

from __future__ import annotations

from .container import Container, read_json


def test_openapi_json_has_the_routes_of_the_platform(container: Container) -> None:
    response = container.request("GET", "/openapi.json")
    container.expect(response.status_code == 200, f"/openapi.json is {response.status_code}")
    document = read_json(response)
    assert document["openapi"].startswith("3.")
    assert {"/ping", "/invocations"} <= set(document["paths"])


def test_the_root_is_an_html_page(container: Container) -> None:
    response = container.request("GET", "/")
    container.expect(response.status_code == 200, f"/ is {response.status_code}")
    container.expect("text/html" in response.headers["Content-Type"], "/ is not HTML")
