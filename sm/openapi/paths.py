"""The paths of the document: every route of the box, in the order of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sm.invocation import BINARY
from sm.openapi.schemas import Described, Json, ref

#: What an invocation may come to.
FAILURES = (400, 404, 413, 415, 422, 429, 500, 501, 503, 504, 507)


def paths(clients: Sequence[Described]) -> Json:
    invoke = _invocation(clients)
    name = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    model = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    loading = {
        "type": "object",
        "required": ["model_name", "url"],
        "properties": _strings("model_name", "url"),
    }
    stream: Json = {"application/vnd.amazon.eventstream": {}}
    return {
        "/ping": {
            "get": _operation("ping", "Whether the box is ready.", {"200": {"description": "ready"}}, 503),
            "post": _operation("pingToo", "The same.", {"200": {"description": "ready"}}, 503),
        },
        "/invocations": {"post": {**invoke, "operationId": "invoke"}},
        "/endpoints/{name}/invocations": {
            "parameters": name,
            "post": {**invoke, "operationId": "invokeEndpoint", "summary": "The same, as boto3 asks."},
        },
        "/endpoints/{name}/invocations-response-stream": {
            "parameters": name,
            "post": {
                **invoke,
                "operationId": "invokeEndpointWithResponseStream",
                "summary": "The same in parts, as boto3 asks.",
                "responses": {"200": {"description": "events", "content": stream}, **_failures(*FAILURES)},
            },
        },
        "/models": {
            "get": _operation("listModels", "What is served, or what is loaded.", _ok("models"), 503),
            "post": {
                **_operation("loadModel", "Multi-model mode: load an archive.", _ok("loaded"), 400, 409, 507),
                "requestBody": {"required": True, "content": {"application/json": {"schema": loading}}},
            },
        },
        "/models/{name}": {
            "parameters": name,
            "get": _operation("getModel", "Where a model was loaded from.", _ok("the model"), 404),
            "delete": _operation("unloadModel", "Multi-model mode: unload.", _ok("unloaded"), 404),
        },
        "/models/{name}/invoke": {"parameters": name, "post": {**invoke, "operationId": "invokeModel"}},
        "/execution-parameters": {
            "get": _operation("executionParameters", "For batch transform.", _ok("how to send"))
        },
        "/metrics": {
            "get": _operation(
                "metrics",
                "Prometheus series.",
                {"200": {"description": "text", "content": {"text/plain": {}}}},
            )
        },
        "/v2": {"get": _operation("server", "Triton's own API begins here.", _ok("the server's metadata"))},
        "/v2/health/ready": {
            "get": _operation("ready", "Triton's health.", {"200": {"description": "ready"}}, 503)
        },
        "/v2/models/{model}": {
            "parameters": model,
            "get": _operation("modelMetadata", "A model's tensors.", _ok("metadata"), 404),
        },
        "/v2/models/{model}/infer": {
            "parameters": model,
            "post": {
                **_operation(
                    "infer", "Tensors to tensors.", {"200": answer("tensors", ref("InferAnswer"))}, *FAILURES
                ),
                "requestBody": _body({"application/json": {"schema": ref("InferRequest")}}),
            },
        },
    }


def _invocation(clients: Sequence[Described]) -> Json:
    requests = [ref(f"{client['name']}.Request") for client in clients]
    answers = [ref(f"{client['name']}.Answer") for client in clients]
    raw: Json = {
        kind: {"schema": {}}
        for client in clients
        for kind in client["content_types"]
        if kind != "application/json"
    }
    content = {
        "application/json": {"schema": {"anyOf": [*requests, ref("InferRequest")]}},
        "application/jsonlines": {"schema": {"type": "string"}},
        BINARY: {"schema": {}},
        **raw,
    }
    return {
        "summary": "One payload or a list of them for a client, or tensors for a model.",
        "parameters": [*_addresses(), *_sagemaker()],
        "requestBody": _body(content),
        "responses": {
            "200": answer("the result", {"anyOf": [*answers, ref("InferAnswer")]}),
            **_failures(*FAILURES),
        },
    }


def _addresses() -> Iterable[Json]:
    for name, what in (("modelname", "The model of a body that names none."), ("version", "Its version.")):
        yield {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}


def _sagemaker() -> Iterable[Json]:
    for name, what in (
        ("Custom-Attributes", "`modelname=…;version=…`, and parameters of the client."),
        ("Target-Model", "The model of a body that names none."),
        ("Inference-Id", "The request's id in the log and in errors."),
        ("Session-Id", "A stateful session, or NEW_SESSION."),
    ):
        yield {
            "name": f"X-Amzn-SageMaker-{name}",
            "in": "header",
            "description": what,
            "schema": {"type": "string"},
        }


def _operation(identity: str, summary: str, good: Json, *failures: int) -> Json:
    return {"operationId": identity, "summary": summary, "responses": {**good, **_failures(*failures)}}


def _failures(*statuses: int) -> Json:
    return {str(status): {"$ref": "#/components/responses/Error"} for status in statuses}


def _ok(what: str) -> Json:
    return {"200": answer(what, {})}


def answer(what: str, schema: Json) -> Json:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _body(content: Json) -> Json:
    return {"required": True, "content": content}


def _strings(*names: str) -> Json:
    return {name: {"type": "string"} for name in names}
