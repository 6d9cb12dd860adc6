"""Sphinx extension: add the routes of ``/openapi.json`` to ``docs/clients/http-api.md``.

The document is the one that every box serves, without the schemas of its clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from sm.http.openapi import METHODS, document
from sm.router.forms.table import Forms

PAGE = "docs/clients/http-api"


def routes(described: dict[str, Any]) -> Iterator[str]:
    """The lines of one section for each method of each path."""
    for path, item in described["paths"].items():
        for method in sorted(METHODS & item.keys()):
            operation = item[method]
            yield from ("", f"## `{method.upper()} {path}`", "", operation["summary"])
            if "description" in operation:
                yield from ("", operation["description"])
            yield from _parameters([*item.get("parameters", ()), *operation.get("parameters", ())])
            body = operation.get("requestBody", {}).get("content", {})
            if body:
                yield from ("", "Body: " + ", ".join(f"`{kind}`" for kind in body) + ".")
            yield from ("", "| status | answer |", "|---|---|")
            for status, response in sorted(operation["responses"].items()):
                yield f"| {status} | {_response(response, described)} |"


def _parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield from ("", "| parameter | in | meaning |", "|---|---|---|")
    for parameter in parameters:
        yield f"| `{parameter['name']}` | {parameter['in']} | {_cell(parameter.get('description', ''))} |"


def _response(response: dict[str, Any], described: dict[str, Any]) -> str:
    if "$ref" in response:
        response = described["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    kinds = ", ".join(f"`{kind}`" for kind in response.get("content", {}))
    return _cell(response["description"]) + (f" ({kinds})" if kinds else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def append_routes(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] += "\n".join(routes(document(forms=Forms.load().schemas()))) + "\n"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", append_routes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
