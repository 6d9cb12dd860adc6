"""Small pieces that the document's paths are made of."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def operation(identity: str, summary: str, good: Json, *failing: int) -> Json:
    return {"operationId": identity, "summary": summary, "responses": {**good, **failures(*failing)}}


def failures(*statuses: int) -> Json:
    """The responses of :mod:`sm.router.openapi.error_schemas`."""
    return {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}


def ok(what: str, schema: Json) -> Json:
    return {"200": answer(what, schema)}


def silent(what: str) -> Json:
    """A 200 without a body."""
    return {"200": {"description": what}}


def text(what: str, content_type: str) -> Json:
    return {"200": {"description": what, "content": {content_type: {}}}}


def answer(what: str, schema: Json) -> Json:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def body(content: Json) -> Json:
    return {"required": True, "content": content}


def in_path(*names: str) -> list[Json]:
    """Parameters of a path."""
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def strings(*names: str) -> Json:
    """An object of texts, all required."""
    return {
        "type": "object",
        "required": list(names),
        "properties": {name: {"type": "string"} for name in names},
    }
