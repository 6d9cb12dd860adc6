"""The schemas of payloads and results in S3, for boxes that may use it."""

from __future__ import annotations

from sm.router.openapi.parts import Json, ref, strings
from sm.router.openapi.schemas import Described

ADDRESS: Json = {"type": "string", "pattern": "^s3://[^/]+/.+", "examples": ["s3://bucket/key"]}
OBJECT: Json = {
    "type": "object",
    "description": "An object of S3 in place of inline data.",
    "required": ["s3_uri"],
    "additionalProperties": False,
    "properties": {"s3_uri": ADDRESS},
}
STORED: Json = {**strings("modelname", "result_s3_uri"), "description": "The result is in S3."}


def add(schemas: Json, client: Described) -> None:
    """Allow S3 objects in a client's request and as its result."""
    name, field = client["name"], client["main_field"]
    schemas |= {"S3Object": OBJECT, "Stored": STORED}
    request, answer = schemas[f"{name}.Request"], schemas[f"{name}.Answer"]
    record_schema = request["properties"]["payload"]["anyOf"][0]
    if field:
        record_schema["anyOf"].append(ref("S3Object"))
    request["properties"]["result_s3_uri"] = {**ADDRESS, "description": "The address to write the result to."}
    schemas[f"{name}.Answer"] = {"anyOf": [answer, ref("Stored")]}
    if field:
        fields = schemas[name]["properties"]
        with_objects = {key: {"anyOf": [fields[key], ref("S3Object")]} for key in client["main_names"]}
        schemas[name] = {**schemas[name], "properties": {**fields, **with_objects}}
