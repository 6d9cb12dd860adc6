"""The JSON Schemas of a client: from its payload type, and from the annotation of its result."""

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
from sm.control.openapi import EXAMPLE_ID, MAX_SAMPLE_BYTES
from sm.errors import TriremeError, WrongPayload
from sm.router.classify import DispatchRequest
from sm.router.dispatch import validate_payload

Schema = dict[str, Any]
#: Larger samples are not examples in the document: nobody reads a picture in base64.
MAX_EXAMPLE_BYTES = 2000


def describe_client(client: Client) -> Mapping[str, Any]:
    """Return the name, summary, schemas and examples of a client, as :mod:`.schemas` needs them."""
    payload, payload_parts = _schema(client.payload, client.name)
    result, result_parts = _result(type(client), client.name)
    sample = client.folder / "sample"
    parameters = payload.get("properties", {}).pop("parameters", None)
    return {
        "name": client.name,
        "summary": (inspect.getdoc(type(client)) or "").split("\n")[0],
        "payload": payload,
        "parameters": parameters,
        "result": result,
        "content_types": list(client.payload.content_types),
        "result_kind": client.result.describe() if client.result else None,
        "samples": [file.name for file in sample_files(client)],
        "streams": client.streams(),
        "main_field": client.payload.main_field,
        "main_names": client.payload.names_of(client.payload.main_field) if client.payload.main_field else (),
        "schemas": {**payload_parts, **result_parts},
        "example": _example(sample / "payload.json") or _example_from_fields(payload),
        "golden": _example(sample / "golden.json"),
        "error_example": _error_example(client),
    }


def sample_files(client: Client) -> list[Path]:
    """Return the files that callers may read: ``payload.json`` and the client's ``samples``."""
    folder = client.folder / "sample"
    files = (folder / name for name in dict.fromkeys(("payload.json", *client.samples)))
    return [file for file in files if _is_sample(file, folder)]


def _is_sample(file: Path, folder: Path) -> bool:
    """True if the file is really in this folder, and not too large."""
    try:
        return file.resolve().parent == folder.resolve() and file.stat().st_size <= MAX_SAMPLE_BYTES
    except OSError:
        return False


def _schema(kind: Any, name: str) -> tuple[Schema, Schema]:
    """Return a type's schema, and those of the types within it; without a schema, any JSON is allowed."""
    try:
        schema = TypeAdapter(kind).json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    except PydanticUserError:
        return {}, {}
    return schema, {f"{name}.{model}": inner for model, inner in schema.pop("$defs", {}).items()}


def _result(kind: type[Client], name: str) -> tuple[Schema, Schema]:
    """Return the schema of the result from the method's annotation."""
    method = kind.postprocess if issubclass(kind, TensorClient) else kind.inference
    try:
        result_type = typing.get_type_hints(method).get("return", object)
    except (NameError, AttributeError, TypeError):  # A name that is imported for type checkers only.
        return {}, {}
    return _schema(result_type, name)


def _error_example(client: Client) -> Schema | None:
    """Return the error for an empty payload; None if that is not an error."""
    try:
        validate_payload(client, DispatchRequest(client.name, [{}]), {})
    except WrongPayload as error:
        return error.body(EXAMPLE_ID)
    except TriremeError:
        pass
    return None


def _example_from_fields(payload: Schema) -> Schema | None:
    """Build a payload from the examples of its required fields; None if one has no example."""
    one_of = (part["oneOf"] for part in payload.get("allOf", ()) if "oneOf" in part)
    required = [*payload.get("required", ()), *(names[0]["required"][0] for names in one_of)]
    fields = {name: payload["properties"][name] for name in required}
    if not fields or not all(field.get("examples") for field in fields.values()):
        return None
    return {name: field["examples"][0] for name, field in fields.items()}


def _example(file: Path) -> Any:
    """Read a sample; None if it is missing, too large or no JSON."""
    try:
        if file.stat().st_size <= MAX_EXAMPLE_BYTES:
            return json.loads(file.read_bytes())
    except (OSError, ValueError):
        pass
    return None
