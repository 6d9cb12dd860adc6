"""Write the schemas of a client for the OpenAPI document: its payload, its requests and its answers."""

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
from sm.errors import TriremeError, WrongPayload
from sm.http.openapi import EXAMPLE_ID, MAX_SAMPLE_BYTES, ref
from sm.router.dispatch import validate_payload
from sm.router.request_types import DispatchRequest

Schema = dict[str, Any]
#: Larger samples are not examples in the document: nobody reads a picture in base64.
MAX_EXAMPLE_BYTES = 2000


def describe_client(client: Client) -> Mapping[str, Any]:
    """Return what :func:`~sm.http.openapi.document` needs of a client."""
    name, sample = client.name, client.folder / "sample"
    payload, parts = _schema(client.payload, name)
    result, result_parts = _result(type(client), name)
    parameters = payload.get("properties", {}).pop("parameters", None)
    request = _request(client, parameters, _example(sample / "payload.json") or _example_from_fields(payload))
    answer: Schema = {
        "type": "object",
        "required": ["modelname", "result"],
        "properties": {"modelname": {"const": name}, "result": _or_list(result)},
    }
    golden = _example(sample / "golden.json")
    if golden is not None:
        answer["examples"] = [{"modelname": name, "result": golden}]
    schemas = {**parts, **result_parts, name: payload, f"{name}.Request": request, f"{name}.Answer": answer}
    return {
        "name": name,
        "content_types": list(client.payload.content_types),
        "schemas": schemas,
        "error_example": _error_example(client),
    }


def _request(client: Client, parameters: Schema | None, example: object) -> Schema:
    """Return the schema of a request, with what the playground needs to know of the client."""
    name, kind = client.name, client.payload
    record_schema: Schema = ref(name)
    if kind.main_field:
        main = {"type": "string", "description": f"`{kind.main_field}` alone."}
        record_schema = {"anyOf": [record_schema, main]}
    request: Schema = {
        "type": "object",
        "description": (inspect.getdoc(type(client)) or "").split("\n")[0],
        "required": ["modelname", "payload"],
        "additionalProperties": False,
        "properties": {
            "modelname": {"const": name},
            "version": {"type": ["string", "integer"]},
            "payload": {"anyOf": [record_schema, {"type": "array", "items": record_schema, "minItems": 1}]},
        },
    }
    details = {
        "x-result": client.result.describe() if client.result else None,  # without it the page shows JSON
        "x-content-types": list(kind.content_types),
        "x-main-field": kind.main_field,
        "x-samples": [file.name for file in sample_files(client)],
        "x-streams": client.streams(),
    }
    request |= {key: value for key, value in details.items() if value}
    if parameters:
        request["properties"]["parameters"] = parameters
    if example is not None:
        request["examples"] = [{"modelname": name, "payload": example}]
    return request


def _or_list(result: Schema) -> Schema:
    """Allow a list of results too, as the answer to a list of payloads. Some of its records may fail."""
    return {"anyOf": [result, {"type": "array", "items": {"anyOf": [result, ref("RecordError")]}}]}


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
        validate_payload(client, DispatchRequest(client.name, [{}], client=client), {})
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
