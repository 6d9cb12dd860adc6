"""The paths of the document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sm.control.openapi import triton_schemas
from sm.control.openapi.parts import (
    Json,
    answer,
    body,
    failures,
    in_path,
    ok,
    ok_with_text,
    ok_without_body,
    operation,
    ref,
    strings,
)
from sm.control.openapi.schemas import Described
from sm.http.messages import BINARY, JSON_LINES, NPY, PNG

TEXT: Json = {"type": "string"}
#: A raw body. Generators need a type, although OpenAPI 3.1 does not.
BYTES: Json = {"type": "string", "format": "binary"}
METHODS = {"get", "post", "delete"}
#: The error statuses of an invocation.
FAILURES = (400, 403, 404, 406, 413, 415, 422, 429, 500, 501, 502, 503, 504, 507)


def paths(clients: Sequence[Described]) -> Json:
    """Describe the routes, those that most callers need first. Each has the tag of its group."""
    invoke = _invocation(clients)
    groups = {
        "Inference": _inference(invoke),
        "Models": _models(),
        "SageMaker": _endpoints(invoke),
        "OpenAI": _openai(),
        "Triton": triton_schemas.paths(),
        "Operations": _operations(),
        "Pages": _pages(),
    }
    for group, described in groups.items():
        for item in described.values():
            for method in METHODS & item.keys():
                item[method]["tags"] = [group]
    return {path: item for described in groups.values() for path, item in described.items()}


def _inference(invoke: Json) -> Json:
    return {
        "/invocations": {"post": {**invoke, "operationId": "invoke"}},
        "/models/{name}/invoke": {
            "parameters": in_path("name"),
            "post": {
                **invoke,
                "operationId": "invokeModel",
                "summary": "Invoke the model in the path.",
            },
        },
        "/invocations-bidirectional-stream": {
            "get": operation(
                "converse",
                "Open a WebSocket, on which each message is an invocation.",
                {"101": {"description": "The connection is a WebSocket now."}},
                *(400, 429, 503),
            )
        },
    }


def _pages() -> Json:
    return {
        "/": {
            "get": operation(
                "playground", "The playground: a page to try the clients.", ok_with_text("HTML", "text/html")
            )
        },
        "/docs": {
            "get": operation("docs", "A page that shows this document.", ok_with_text("HTML", "text/html"))
        },
        "/dashboard": {
            "get": operation("dashboard", "A page with charts of the box.", ok_with_text("HTML", "text/html"))
        },
        "/page/{name}": {
            "parameters": in_path("name"),
            "get": operation(
                "pageFile", "A script or style of these pages.", {"200": {"description": "The file."}}, 404
            ),
        },
        "/samples/{client}/{name}": {
            "parameters": in_path("client", "name"),
            "get": operation(
                "sample", "A file of a client's samples.", {"200": {"description": "The file."}}, 404
            ),
        },
    }


def _operations() -> Json:
    ready = ok_without_body("The box is ready.")
    return {
        "/ping": {
            "get": operation("ping", "Check whether the box is ready.", ready, 503),
            "post": operation("pingToo", "Check whether the box is ready, as with GET.", ready, 503),
        },
        "/execution-parameters": {
            "get": operation(
                "executionParameters",
                "How batch transform should send requests.",
                ok("The parameters.", ref("ExecutionParameters")),
            )
        },
        "/metrics": {
            "get": operation("metrics", "Metrics for Prometheus.", ok_with_text("The series.", "text/plain"))
        },
        "/dashboard/data": {
            "get": {
                **operation(
                    "dashboardData",
                    "The numbers behind the dashboard.",
                    ok("The last hour.", ref("History")),
                    *(400, 503),
                ),
                "parameters": [
                    {
                        "name": "since",
                        "in": "query",
                        "description": "The Unix time of the last point that the caller has.",
                        "schema": {"type": "number"},
                    }
                ],
            }
        },
        "/openapi.json": {
            "get": operation("document", "This document.", ok("OpenAPI 3.1", {"type": "object"}))
        },
    }


def _models() -> Json:
    model = ok("The model.", ref("Model"))
    return {
        "/models": {
            "get": operation(
                "listModels", "List the models that are served.", ok("The models.", ref("Models")), 400
            ),
            "post": {
                **operation(
                    "loadModel",
                    "Load an archive in multi-model mode; else a 405.",
                    model,
                    *(400, 405, 409, 422, 500, 503, 507),
                ),
                "requestBody": body({"application/json": {"schema": strings("model_name", "url")}}),
            },
        },
        "/models/{name}": {
            "parameters": in_path("name"),
            "get": operation("getModel", "Describe a model.", model, 404),
            "delete": operation(
                "unloadModel",
                "Unload a model in multi-model mode; else a 405.",
                ok("The model is unloaded.", {"type": "object"}),
                *(404, 405, 409, 503),
            ),
        },
    }


def _endpoints(invoke: Json) -> Json:
    """Describe the routes of SageMaker's runtime API, where every error of the box is a 424."""
    replies = {"200": invoke["responses"]["200"], **failures(424)}
    events = {
        "200": {"description": "Event-stream frames.", "content": {"application/vnd.amazon.eventstream": {}}},
        **failures(424),
    }
    parameters = in_path("name")
    return {
        "/endpoints/{name}/invocations": {
            "parameters": parameters,
            "post": {
                **invoke,
                "operationId": "invokeEndpoint",
                "summary": "Invoke as boto3 does with `invoke_endpoint`.",
                "responses": {**replies, **failures(413, 429, 503)},
            },
        },
        "/endpoints/{name}/invocations-response-stream": {
            "parameters": parameters,
            "post": {
                **invoke,
                "operationId": "invokeEndpointWithResponseStream",
                "summary": "Invoke as boto3 does with `invoke_endpoint_with_response_stream`.",
                "responses": {**events, **failures(413, 429, 503)},
            },
        },
    }


def _openai() -> Json:
    """Describe the embeddings API. nginx answers some errors in the box's own form."""
    wrong = answer("An error in OpenAI's form.", {"anyOf": [ref("OpenAIError"), ref("Error")]})
    statuses = (400, 403, 404, 413, 429, 500, 503, 504, 507)
    return {
        "/v1/embeddings": {
            "post": {
                "operationId": "embed",
                "summary": "Turn texts into vectors, as OpenAI's embeddings API does.",
                "requestBody": body({"application/json": {"schema": ref("EmbeddingsRequest")}}),
                "responses": {
                    **ok("The vectors.", ref("Embeddings")),
                    **{str(status): wrong for status in statuses},
                },
            }
        },
        "/v1/models": {
            "get": operation(
                "listEmbeddingModels",
                "List the clients that give embeddings, as OpenAI lists models.",
                ok("The clients.", ref("EmbeddingModels")),
            )
        },
    }


def _invocation(clients: Sequence[Described]) -> Json:
    requests = [ref(f"{client['name']}.Request") for client in clients]
    answers = [ref(f"{client['name']}.Answer") for client in clients]
    raw: Json = {
        kind: {"schema": TEXT if kind.startswith("text/") else BYTES}
        for client in clients
        for kind in client["content_types"]
        if kind != "application/json"
    }
    accepted = {
        "application/json": {"schema": {"anyOf": [*requests, ref("InferRequest"), ref("SessionRequest")]}},
        JSON_LINES: {"schema": TEXT},
        BINARY: {"schema": BYTES},
        **raw,
    }
    success = answer("The result.", {"anyOf": [*answers, ref("InferAnswer"), ref("SessionAnswer")]})
    others = (JSON_LINES, BINARY, NPY, PNG, "text/event-stream", *(kind for kind in raw if kind == "*/*"))
    success["content"] |= {kind: {} for kind in others}
    return {
        "summary": "Send a payload or a list of them to a client, or tensors to a model.",
        "parameters": [*_addresses(), *_sagemaker()],
        "requestBody": body(accepted),
        "responses": {"200": success, **failures(*FAILURES)},
    }


def _addresses() -> Iterable[Json]:
    for name, description in (
        ("modelname", "The model, if the body names none."),
        ("version", "The model version, if the body names none."),
    ):
        yield {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _sagemaker() -> Iterable[Json]:
    for name, description in (
        ("Custom-Attributes", "`modelname=…;version=…`, and parameters of the client."),
        ("Target-Model", "The model, if the body names none."),
        ("Inference-Id", "The request's id, for the log and for errors."),
        ("Session-Id", "A stateful session's id, or NEW_SESSION; a 400 if sessions are off."),
    ):
        yield {
            "name": f"X-Amzn-SageMaker-{name}",
            "in": "header",
            "description": description,
            "schema": {"type": "string"},
        }
