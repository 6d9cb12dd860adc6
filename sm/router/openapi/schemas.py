"""The schemas of the document: those that every box has, and those of each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm.router.openapi import history_schemas
from sm.router.openapi.parts import Json, ref, strings

Described = Mapping[str, Any]

TENSOR: Json = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "examples": ["FP32", "INT64", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
TENSOR_METADATA = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {name: TENSOR["properties"][name] for name in ("name", "datatype", "shape")},
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
    "RecordError": strings("error", "code"),
    "ModelError": {
        "type": "object",
        "required": ["Message", "OriginalStatusCode", "OriginalMessage"],
        "properties": {
            "Message": {"type": "string"},
            "OriginalStatusCode": {"type": "integer", "minimum": 400, "maximum": 599},
            "OriginalMessage": {"type": "string", "description": "The box's own body."},
            "LogStreamArn": {"type": "string"},
        },
    },
    "Model": {
        "type": "object",
        "required": ["modelName", "modelUrl"],
        "properties": {
            "modelName": {"type": "string"},
            "modelUrl": {"type": "string"},
            "client": {"type": ["string", "null"], "description": "The client's class."},
            "ready": {"type": "boolean"},
            "reason": {"type": ["string", "null"], "description": "Why it is not ready, if that is known."},
            "versions": {"type": "array", "items": {"type": "string"}},
            "reload_error": {
                "type": ["string", "null"],
                "description": "Why the client's old version still serves; null if the latest does.",
            },
        },
    },
    "Models": {
        "type": "object",
        "required": ["models"],
        "properties": {
            "models": {"type": "array", "items": ref("Model")},
            "nextPageToken": {"type": "string", "description": "Present if there are more models."},
        },
    },
    **history_schemas.SCHEMAS,
    "ExecutionParameters": {
        "type": "object",
        "required": ["MaxConcurrentTransforms", "MaxPayloadInMB"],
        "properties": {
            "MaxConcurrentTransforms": {"type": "integer", "minimum": 1},
            "BatchStrategy": {
                "enum": ["MULTI_RECORD", "SINGLE_RECORD"],
                "description": "Present if SAGEMAKER_BATCH_STRATEGY is set; else SageMaker's default holds.",
            },
            "MaxPayloadInMB": {"type": "integer", "minimum": 0},
        },
    },
    "SessionRequest": {
        "type": "object",
        "description": "Opens or closes a stateful session.",
        "required": ["requestType"],
        "additionalProperties": False,
        "properties": {"requestType": {"enum": ["NEW_SESSION", "CLOSE"]}},
    },
    "SessionAnswer": {
        "type": "object",
        "description": "An empty object: the session's id is in a header.",
        "additionalProperties": False,
    },
    "Server": {
        "type": "object",
        "required": ["name", "version", "extensions"],
        "properties": {
            "name": {"type": "string"},
            "version": {"type": "string"},
            "trireme_version": {"type": "string", "description": "The box's own version."},
            "extensions": {"type": "array", "items": {"type": "string"}},
        },
    },
    "ModelMetadata": {
        "type": "object",
        "required": ["name", "platform", "inputs", "outputs"],
        "properties": {
            "name": {"type": "string"},
            "versions": {"type": "array", "items": {"type": "string"}},
            "platform": {"type": "string"},
            "inputs": {"type": "array", "items": TENSOR_METADATA},
            "outputs": {"type": "array", "items": TENSOR_METADATA},
        },
    },
    "GenerateRequest": {
        "type": "object",
        "description": "The model's inputs by name.",
        "additionalProperties": {
            "anyOf": [{"type": ["string", "number", "boolean", "object"]}, {"type": "array", "items": {}}]
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
    """Return the schemas of a client's payload, of a request for it and of its answer."""
    name = client["name"]
    record_schema: Json = {"$ref": f"#/components/schemas/{name}"}
    if client["main_field"]:
        record_schema = {
            "anyOf": [record_schema, {"type": "string", "description": f"`{client['main_field']}` alone."}]
        }
    request: Json = {
        "type": "object",
        "description": client["summary"],
        "required": ["modelname", "payload"],
        "additionalProperties": False,
        "properties": {
            "modelname": {"const": name},
            "version": {"type": ["string", "integer"]},
            "payload": {"anyOf": [record_schema, {"type": "array", "items": record_schema, "minItems": 1}]},
        },
    }
    request |= {f"x-{key}": value for key, value in _playground_details(client).items()}
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


def _playground_details(client: Described) -> Json:
    """Return what the playground needs to know of the client. Without ``x-result`` it shows JSON."""
    details: Json = {
        "result": client["result_kind"],
        "content-types": client["content_types"],
        "main-field": client["main_field"],
        "samples": client["samples"],
        "streams": client["streams"],
    }
    return {key: value for key, value in details.items() if value}


def _or_list(result: Json) -> Json:
    """Allow a list of results too, as the answer to a list of payloads. Some of its records may fail."""
    return {"anyOf": [result, {"type": "array", "items": {"anyOf": [result, ref("RecordError")]}}]}
