"""The parts of the OpenAPI document, and its schemas: those that every box has, and those of each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import NotRequired, TypedDict

#: A larger sample is not served.
MAX_SAMPLE_BYTES = 8 * 2**20
#: The request id of the examples.
EXAMPLE_ID = "0b5e…"

Json = dict[str, Any]


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def get(identity: str, summary: str, success: Json, *error_statuses: int) -> Json:
    """Describe a path that is only read."""
    return {"get": operation(identity, summary, success, *error_statuses)}


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


def strings(*names: str) -> Json:
    """Return an object of strings, all required."""
    return {
        "type": "object",
        "required": list(names),
        "properties": {name: {"type": "string"} for name in names},
    }


Described = Mapping[str, Any]

#: Schemas by the name of their class; a field's comment for readers of the document is its description.
Count = Annotated[int, Field(ge=0)]
Milliseconds = Annotated[float | None, Field(description="Milliseconds; null without a request.")]


class Error(TypedDict):
    error: Annotated[str, Field(description="What is wrong, in a sentence.")]
    code: str
    request_id: str


class RecordError(TypedDict):
    error: str
    code: str


class ModelError(TypedDict):
    Message: str
    OriginalStatusCode: Annotated[int, Field(ge=400, le=599)]
    OriginalMessage: Annotated[str, Field(description="The box's own body.")]
    LogStreamArn: NotRequired[str]


class Model(TypedDict):
    modelName: str
    modelUrl: str
    client: NotRequired[Annotated[str | None, Field(description="The client's class.")]]
    ready: NotRequired[bool]
    reason: NotRequired[Annotated[str | None, Field(description="Why it is not ready, if that is known.")]]
    versions: NotRequired[list[str]]
    reload_error: NotRequired[
        Annotated[
            str | None,
            Field(description="Why the client's old version still serves; null if the latest does."),
        ]
    ]


class Models(TypedDict):
    models: list[Model]
    nextPageToken: NotRequired[Annotated[str, Field(description="Present if there are more models.")]]


class Outcome(TypedDict):
    answers: Annotated[
        dict[str, Count], Field(description="Number of answers by class of status, such as 2xx.")
    ]
    p50_ms: Milliseconds
    p95_ms: Milliseconds
    p99_ms: Milliseconds
    queue: Count


class AllModels(Outcome):
    """All models together."""

    in_flight: Count


class OneModel(Outcome):
    """One model."""

    threads: Count
    stages_ms: Annotated[dict[str, float], Field(description="Time in each stage, summed over all requests.")]


class Period(TypedDict):
    """The requests of a period."""

    at: Annotated[float, Field(description="The end of the period, in seconds since 1970.")]
    seconds: Annotated[float, Field(description="The length of the period.")]
    all: AllModels
    models: Annotated[dict[str, OneModel], Field(description="Models that had requests.")]


class HistoryPoint(Period):
    """The requests of a period, and the memory in use at its end."""

    memory: dict[str, Count]
    shared_memory: Count


class ServedModel(TypedDict):
    """A model that is served."""

    name: str
    client: str | None
    versions: list[str]
    state: Literal["ready", "not ready", "unknown"]
    reason: str


class BoxProcess(TypedDict):
    """A process of the box with its descendants."""

    name: str
    state: str
    pid: int | None
    processes: Count
    stopped: Count
    restarts: Count
    memory: Count


class SharedMemory(TypedDict):
    """Bytes in /dev/shm."""

    used: Count
    size: Count
    free: Count


class BoxState(TypedDict):
    """The latest state of the box."""

    at: float
    version: str
    ready: bool
    reason: str
    models: list[ServedModel]
    processes: list[BoxProcess]
    shared_memory: SharedMemory
    last_minute: Period


class BoxEvent(TypedDict):
    """A change."""

    at: float
    text: str


class History(TypedDict):
    """The last hour of the box."""

    interval_seconds: float
    box: BoxState
    events: list[BoxEvent]
    points: list[HistoryPoint]


class ExecutionParameters(TypedDict):
    MaxConcurrentTransforms: Annotated[int, Field(ge=1)]
    BatchStrategy: NotRequired[
        Annotated[
            Literal["MULTI_RECORD", "SINGLE_RECORD"],
            Field(description="Present if SAGEMAKER_BATCH_STRATEGY is set; else SageMaker's default holds."),
        ]
    ]
    MaxPayloadInMB: Count


class SessionRequest(TypedDict):
    """Opens or closes a stateful session."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    requestType: Literal["NEW_SESSION", "CLOSE"]


class SessionAnswer(TypedDict):
    """An empty object: the session's id is in a header."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]


class Server(TypedDict):
    name: str
    version: str
    trireme_version: NotRequired[Annotated[str, Field(description="The box's own version.")]]
    extensions: list[str]


class TensorMetadata(TypedDict):
    name: str
    datatype: Annotated[str, Field(examples=["FP32", "INT64", "BYTES"])]
    shape: list[int]


class Tensor(TensorMetadata):
    data: NotRequired[list[Any]]
    parameters: NotRequired[Json]


class ModelMetadata(TypedDict):
    name: str
    versions: NotRequired[list[str]]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferRequest(TypedDict):
    id: NotRequired[str]
    inputs: list[Tensor]
    outputs: NotRequired[list[Json]]
    parameters: NotRequired[Json]


class InferAnswer(TypedDict):
    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[Tensor]


Tokens = Annotated[list[Count], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1)]


class EmbeddingsRequest(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    model: Annotated[str, Field(description="A client of /v1/models.")]
    input: Annotated[
        str | Tokens | Texts | Annotated[list[Tokens], Field(min_length=1)],
        Field(description="A text, the ids of its tokens, or a list of either."),
    ]
    encoding_format: NotRequired[Literal["float", "base64"]]
    dimensions: NotRequired[Annotated[int, Field(ge=1, description="Keep so many numbers.")]]
    user: NotRequired[Annotated[str, Field(description="Ignored.")]]


class Usage(TypedDict):
    """The tokens that were read."""

    prompt_tokens: Count
    total_tokens: Count


class Vector(TypedDict):
    """One vector."""

    object: Literal["embedding"]
    index: Count
    embedding: Annotated[str | list[float], Field(description="Numbers; with base64, little-endian float32.")]


class Embeddings(TypedDict):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    model: str
    usage: Usage
    data: list[Vector]


class EmbeddingModel(TypedDict):
    """One client."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str


class EmbeddingModels(TypedDict):
    """The clients that give embeddings."""

    object: Literal["list"]
    data: list[EmbeddingModel]


class OpenAIReason(TypedDict):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    """An error as OpenAI sends it."""

    error: OpenAIReason


#: The schemas to which a path refers; theirs come with them.
REFERRED: tuple[Any, ...] = (
    *(EmbeddingsRequest, Embeddings, EmbeddingModels, OpenAIError, Error, RecordError, ModelError, Models),
    *(History, ExecutionParameters, SessionRequest, SessionAnswer, Server, ModelMetadata, InferRequest),
    InferAnswer,
)


class Generator(GenerateJsonSchema):
    """Gives no titles to fields: they would repeat the names."""

    def field_title_should_be_set(self, _schema: object) -> bool:
        return False


def common() -> Json:
    """Return the schemas that every box has."""
    adapters = [(kind.__name__, "serialization", TypeAdapter(kind)) for kind in REFERRED]
    _, schemas = TypeAdapter.json_schemas(
        adapters,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
        schema_generator=Generator,
    )
    inputs = {"anyOf": [{"type": ["string", "number", "boolean", "object"]}, {"type": "array", "items": {}}]}
    generate = {"type": "object", "description": "The model's inputs by name."}
    return {**schemas["$defs"], "GenerateRequest": {**generate, "additionalProperties": inputs}}


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
