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
from sm.router.invocation import DispatchRequest
from sm.router.openapi.parts import EXAMPLE_ID

Schema = dict[str, Any]
#: Bytes. Larger samples are not shown as examples: a picture in base64 is not readable.
MAX_EXAMPLE_BYTES = 2000
#: A larger sample is not served.
MAX_SAMPLE_BYTES = 8 * 2**20


def describe_client(client: Client) -> Mapping[str, Any]:
    """Return name, summary, schemas and examples of one client."""
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
        "result_kind": client.result.describe() if client.result else None,
        "samples": [file.name for file in sample_files(client)],
        "streams": client.streams(),
        "main_field": client.payload.main_field,
        "main_names": _main_names(client.payload),
        "schemas": {**shared, **more},
        "example": _example(sample / "payload.json") or _sketch(payload),
        "golden": _example(sample / "golden.json"),
        "mistake": _mistake(client),
    }


def sample_files(client: Client) -> list[Path]:
    """Return the files of ``sample`` that callers may read: ``payload.json``, and those that the client
    lists.
    """
    folder = client.folder / "sample"
    files = (folder / name for name in dict.fromkeys(("payload.json", *client.samples)))
    return [file for file in files if _is_sample(file, folder)]


def _is_sample(file: Path, folder: Path) -> bool:
    """True if it is a file of the folder itself, and not too large."""
    try:
        return file.resolve().parent == folder.resolve() and file.stat().st_size <= MAX_SAMPLE_BYTES
    except OSError:
        return False


def _schema(kind: Any, name: str) -> tuple[Schema, Schema]:
    """Return a type's schema, or any JSON if it has none, and the schemas of the types in it."""
    try:
        schema = TypeAdapter(kind).json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    except PydanticUserError:
        return {}, {}
    return schema, {f"{name}.{model}": inner for model, inner in schema.pop("$defs", {}).items()}


def _result(kind: type[Client], name: str) -> tuple[Schema, Schema]:
    """Return the schema of the result from the method's annotation."""
    maker = kind.postprocess if issubclass(kind, TensorClient) else kind.inference
    try:
        result_type = typing.get_type_hints(maker).get("return", object)
    except (NameError, AttributeError, TypeError):  # a name that only a type checker imports
        return {}, {}
    return _schema(result_type, name)


def _mistake(client: Client) -> Schema | None:
    """Return the error for an empty payload."""
    try:
        validate_payload(client, DispatchRequest(client.name, [{}]), {})
    except WrongPayload as error:
        return error.body(EXAMPLE_ID)
    except TriremeError:
        pass
    return None


def _main_names(payload: type[Payload]) -> list[str]:
    """Return the keys of the main field."""
    return list(payload.names_of(payload.main_field)) if payload.main_field else []


def _sketch(payload: Schema) -> Schema | None:
    """Build a payload from the fields' examples."""
    one_of = (part["oneOf"] for part in payload.get("allOf", ()) if "oneOf" in part)
    required = [*payload.get("required", ()), *(names[0]["required"][0] for names in one_of)]
    fields = {name: payload["properties"][name] for name in required}
    if not fields or not all(field.get("examples") for field in fields.values()):
        return None
    return {name: field["examples"][0] for name, field in fields.items()}


def _example(file: Path) -> Any:
    try:
        if file.stat().st_size <= MAX_EXAMPLE_BYTES:
            return json.loads(file.read_bytes())
    except (OSError, ValueError):
        pass
    return None
