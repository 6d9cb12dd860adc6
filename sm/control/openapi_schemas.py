"""The parts of the OpenAPI document, and its schemas: those that every box has, and those of each client."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Refer to responses of :mod:`sm.control.openapi`."""
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


Described = Mapping[str, Any]

NUMBER: Json = {"type": "number"}
INTEGER: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
MILLISECONDS: Json = {"type": ["number", "null"], "description": "Milliseconds; null without a request."}


def _object(description: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "description": description,
        "required": list(properties),
        "properties": properties,
    }


_OUTCOME = {
    "answers": {
        "type": "object",
        "description": "Number of answers by class of status, such as 2xx.",
        "additionalProperties": INTEGER,
    },
    "p50_ms": MILLISECONDS,
    "p95_ms": MILLISECONDS,
    "p99_ms": MILLISECONDS,
    "queue": INTEGER,
}
_PERIOD = {
    "at": {"type": "number", "description": "The end of the period, in seconds since 1970."},
    "seconds": {"type": "number", "description": "The length of the period."},
    "all": _object("All models together.", **_OUTCOME, in_flight=INTEGER),
    "models": {
        "type": "object",
        "description": "Models that had requests.",
        "additionalProperties": _object(
            "One model.",
            **_OUTCOME,
            threads=INTEGER,
            stages_ms={
                "type": "object",
                "description": "Time in each stage, summed over all requests.",
                "additionalProperties": NUMBER,
            },
        ),
    },
}

HISTORY: Json = {
    "Period": _object("The requests of a period.", **_PERIOD),
    "HistoryPoint": _object(
        "The requests of a period, and the memory in use at its end.",
        **_PERIOD,
        memory={"type": "object", "additionalProperties": INTEGER},
        shared_memory=INTEGER,
    ),
    "History": _object(
        "The last hour of the box.",
        interval_seconds=NUMBER,
        box=_object(
            "The latest state of the box.",
            at=NUMBER,
            version=TEXT,
            ready={"type": "boolean"},
            reason=TEXT,
            models={
                "type": "array",
                "items": _object(
                    "A model that is served.",
                    name=TEXT,
                    client={"type": ["string", "null"]},
                    versions={"type": "array", "items": TEXT},
                    state={"enum": ["ready", "not ready", "unknown"]},
                    reason=TEXT,
                ),
            },
            processes={
                "type": "array",
                "items": _object(
                    "A process of the box with its descendants.",
                    name=TEXT,
                    state=TEXT,
                    pid={"type": ["integer", "null"]},
                    processes=INTEGER,
                    stopped=INTEGER,
                    restarts=INTEGER,
                    memory=INTEGER,
                ),
            },
            shared_memory=_object("Bytes in /dev/shm.", used=INTEGER, size=INTEGER, free=INTEGER),
            last_minute=ref("Period"),
        ),
        events={"type": "array", "items": _object("A change.", at=NUMBER, text=TEXT)},
        points={"type": "array", "items": ref("HistoryPoint")},
    ),
}
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
_TOKENS: Json = {"type": "array", "items": INTEGER, "minItems": 1}
OPENAI: Json = {
    "EmbeddingsRequest": {
        "type": "object",
        "required": ["model", "input"],
        "additionalProperties": False,
        "properties": {
            "model": {"type": "string", "description": "A client of /v1/models."},
            "input": {
                "description": "A text, the ids of its tokens, or a list of either.",
                "anyOf": [
                    TEXT,
                    _TOKENS,
                    {"type": "array", "items": TEXT, "minItems": 1},
                    {"type": "array", "items": _TOKENS, "minItems": 1},
                ],
            },
            "encoding_format": {"enum": ["float", "base64"]},
            "dimensions": {"type": "integer", "minimum": 1, "description": "Keep so many numbers."},
            "user": {"type": "string", "description": "Ignored."},
        },
    },
    "Embeddings": _object(
        "The vectors, in the order of the inputs.",
        object={"const": "list"},
        model=TEXT,
        usage=_object("The tokens that were read.", prompt_tokens=INTEGER, total_tokens=INTEGER),
        data={
            "type": "array",
            "items": _object(
                "One vector.",
                object={"const": "embedding"},
                index=INTEGER,
                embedding={
                    "description": "Numbers; with base64, little-endian float32.",
                    "anyOf": [TEXT, {"type": "array", "items": NUMBER}],
                },
            ),
        },
    ),
    "EmbeddingModels": _object(
        "The clients that give embeddings.",
        object={"const": "list"},
        data={
            "type": "array",
            "items": _object(
                "One client.", id=TEXT, object={"const": "model"}, created=INTEGER, owned_by=TEXT
            ),
        },
    ),
    "OpenAIError": _object(
        "An error as OpenAI sends it.",
        error=_object(
            "What is wrong.",
            message=TEXT,
            type=TEXT,
            param={"type": ["string", "null"]},
            code={"type": ["string", "null"]},
        ),
    ),
}
COMMON: Json = {
    **OPENAI,
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
    **HISTORY,
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


ADDRESS: Json = {"type": "string", "pattern": "^s3://[^/]+/.+", "examples": ["s3://bucket/key"]}
OBJECT: Json = {
    "type": "object",
    "description": "An object of S3 in place of inline data.",
    "required": ["s3_uri"],
    "additionalProperties": False,
    "properties": {"s3_uri": ADDRESS},
}
STORED: Json = {**strings("modelname", "result_s3_uri"), "description": "The result is in S3."}


def allow_objects(schemas: Json, client: Described) -> None:
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
