"""Building blocks of the document's paths."""

from __future__ import annotations

from typing import Any

#: The request id of the examples.
EXAMPLE_ID = "0b5e…"

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def operation(identity: str, summary: str, good: Json, *failing: int) -> Json:
    return {"operationId": identity, "summary": summary, "responses": {**good, **failures(*failing)}}


def failures(*statuses: int) -> Json:
    """Refer to responses of :mod:`sm.router.openapi.error_schemas`."""
    return {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}


def ok(what: str, schema: Json) -> Json:
    return {"200": answer(what, schema)}


def silent(what: str) -> Json:
    """Return a 200 without a body."""
    return {"200": {"description": what}}


def text(what: str, content_type: str) -> Json:
    return {"200": {"description": what, "content": {content_type: {}}}}


def answer(what: str, schema: Json) -> Json:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def body(content: Json) -> Json:
    return {"required": True, "content": content}


def in_path(*names: str) -> list[Json]:
    """Return the parameters of a path."""
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def strings(*names: str) -> Json:
    """Return an object of strings, all required."""
    return {
        "type": "object",
        "required": list(names),
        "properties": {name: {"type": "string"} for name in names},
    }
