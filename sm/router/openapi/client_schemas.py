"""JSON Schema of a client: its payload type, and its result by the annotations."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from sm.client.base import Client, TensorClient
from sm.client.payloads import Payload
from sm.errors import TriremeError, WrongPayload
from sm.router.dispatch import validate_payload
from sm.router.invocation import Invocation

Schema = dict[str, Any]
#: Samples are shown as examples up to this size in bytes: nobody reads a picture in base64.
LARGEST_EXAMPLE = 2000


def described(client: Client) -> Mapping[str, Any]:
    """Name, summary, schemas and examples of one client."""
    payload, shared = _schema(client.payload, client.name)
    result, more = _result(type(client), client.name)
    sample = client.folder / "sample"
    parameters = payload.get("properties", {}).pop("parameters", None)
    return {
        "name": client.name,
        "summary": (inspect.getdoc(type(client)) or "").split("\n")[0],
        "payload": payload,
        "parameters": parameters,
        "result": result,
        "content_types": list(client.payload.content_types),
        "main_field": client.payload.main_field,
        "main_names": _main_names(client.payload),
        "schemas": {**shared, **more},
        "example": _example(sample / "payload.json") or _sketch(payload),
        "golden": _example(sample / "golden.json"),
        "mistake": _mistake(client),
    }


def _schema(kind: Any, name: str) -> tuple[Schema, Schema]:
    """A type's schema, any JSON if it has none; and those of the types in it by their place."""
    try:
        schema = TypeAdapter(kind).json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    except PydanticUserError:
        return {}, {}
    return schema, {f"{name}.{model}": inner for model, inner in schema.pop("$defs", {}).items()}


def _result(kind: type[Client], name: str) -> tuple[Schema, Schema]:
    """From the annotation of what makes the result."""
    maker = kind.postprocess if issubclass(kind, TensorClient) else kind.inference
    try:
        said = typing.get_type_hints(maker).get("return", object)
    except (NameError, AttributeError, TypeError):  # a name that only a type checker imports
        return {}, {}
    return _schema(said, name)


def _mistake(client: Client) -> Schema | None:
    """What is said to who sends an empty payload."""
    try:
        validate_payload(client, Invocation(client.name, [{}]), {})
    except WrongPayload as error:
        return {"error": error.sentence, "code": error.code, "request_id": "0b5e…", **error.details}
    except TriremeError:
        pass
    return None


def _main_names(payload: type[Payload]) -> list[str]:
    """The keys under which the main field may be sent."""
    return list(payload.names_of(payload.main_field)) if payload.main_field else []


def _sketch(payload: Schema) -> Schema | None:
    """A payload of the examples that its fields have."""
    one_of = (part["oneOf"] for part in payload.get("allOf", ()) if "oneOf" in part)
    required = [*payload.get("required", ()), *(names[0]["required"][0] for names in one_of)]
    fields = {name: payload["properties"][name] for name in required}
    if not fields or not all(field.get("examples") for field in fields.values()):
        return None
    return {name: field["examples"][0] for name, field in fields.items()}


def _example(file: Path) -> Any:
    try:
        if file.stat().st_size <= LARGEST_EXAMPLE:
            return json.loads(file.read_bytes())
    except (OSError, ValueError):
        pass
    return None
