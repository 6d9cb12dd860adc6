"""Building blocks of the document's paths."""

from __future__ import annotations

from typing import Any

#: A larger sample is not served.
MAX_SAMPLE_BYTES = 8 * 2**20
#: The request id of the examples.
EXAMPLE_ID = "0b5e…"

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def operation(identity: str, summary: str, success: Json, *error_statuses: int) -> Json:
    return {
        "operationId": identity,
        "summary": summary,
        "responses": {**success, **failures(*error_statuses)},
    }


def failures(*statuses: int) -> Json:
    """Refer to responses of :mod:`sm.control.openapi.document`."""
    return {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}


def ok(description: str, schema: Json) -> Json:
    """Return a 200 with a JSON body."""
    return {"200": answer(description, schema)}


def ok_without_body(description: str) -> Json:
    return {"200": {"description": description}}


def ok_with_text(description: str, content_type: str) -> Json:
    return {"200": {"description": description, "content": {content_type: {}}}}


def answer(description: str, schema: Json) -> Json:
    """Return a response with a JSON body."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


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
