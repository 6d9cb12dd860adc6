"""For people who look for the first time: what can be asked, as a schema and as a page."""

from __future__ import annotations

from .container import Container, json_of


def test_openapi_json_has_the_routes_of_the_platform(container: Container) -> None:
    answer = container.ask("GET", "/openapi.json")
    container.expects(answer.status_code == 200, f"/openapi.json is {answer.status_code}")
    found = json_of(answer)
    assert found["openapi"].startswith("3.")
    assert {"/ping", "/invocations"} <= set(found["paths"])


def test_the_root_is_a_page(container: Container) -> None:
    answer = container.ask("GET", "/")
    container.expects(answer.status_code == 200, f"/ is {answer.status_code}")
    container.expects("text/html" in answer.headers["Content-Type"], "/ is no page")
