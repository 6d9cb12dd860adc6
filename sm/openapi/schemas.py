"""The schemas of the document: what is common to every box, and what each client takes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
Described = Mapping[str, Any]

TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "examples": ["FP32", "INT64", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
}
COMMON: Json = {
    "Error": {
        "type": "object",
        "required": ["error", "code", "request_id"],
        "properties": {
            "error": {"type": "string", "description": "What is wrong, in a sentence."},
            "code": {"type": "string"},
            "request_id": {"type": "string"},
        },
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": TENSOR},
            "outputs": {"type": "array", "items": {"type": "object"}},
            "parameters": {"type": "object"},
        },
    },
    "InferAnswer": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": TENSOR},
        },
    },
}


def of_client(client: Described) -> Json:
    name = client["name"]
    one: Json = {"$ref": f"#/components/schemas/{name}"}
    if client["main_field"]:
        one = {"anyOf": [one, {"type": "string", "description": f"`{client['main_field']}` alone."}]}
    request: Json = {
        "type": "object",
        "description": client["summary"],
        "required": ["modelname", "payload"],
        "additionalProperties": False,
        "properties": {
            "modelname": {"const": name},
            "version": {"type": ["string", "integer"]},
            "payload": {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]},
        },
    }
    if client["parameters"]:
        request["properties"]["parameters"] = client["parameters"]
    if client["example"] is not None:
        request["examples"] = [{"modelname": name, "payload": client["example"]}]
    answer: Json = {
        "type": "object",
        "required": ["modelname", "result"],
        "properties": {"modelname": {"const": name}, "result": _or_list(client["result"])},
    }
    if client["golden"] is not None:
        answer["examples"] = [{"modelname": name, "result": client["golden"]}]
    return {name: client["payload"], f"{name}.Request": request, f"{name}.Answer": answer}


def _or_list(result: Json) -> Json:
    """A list of payloads gets a list of results, in which one may have failed."""
    return {"anyOf": [result, {"type": "array", "items": {"anyOf": [result, {"type": "object"}]}}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
