"""The paths of the document, in the order of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sm.router.invocation import BINARY, JSON_LINES, NPY, PNG
from sm.router.openapi import triton_schemas
from sm.router.openapi.parts import (
    Json,
    answer,
    body,
    failures,
    in_path,
    ok,
    operation,
    ref,
    silent,
    strings,
    text,
)
from sm.router.openapi.schemas import Described

#: The error statuses of an invocation.
FAILURES = (400, 403, 404, 406, 413, 415, 422, 429, 500, 501, 502, 503, 504, 507)


def paths(clients: Sequence[Described]) -> Json:
    invoke = _invocation(clients)
    return {
        **_pages(),
        "/invocations": {"post": {**invoke, "operationId": "invoke"}},
        "/invocations-bidirectional-stream": {
            "get": operation(
                "converse",
                "A WebSocket: each message is an invocation.",
                {"101": {"description": "the conversation begins"}},
                *(400, 429, 503),
            )
        },
        **_endpoints(invoke),
        **_models(),
        "/models/{name}/invoke": {
            "parameters": in_path("name"),
            "post": {
                **invoke,
                "operationId": "invokeModel",
                "summary": "The same, for the model of the path.",
            },
        },
        **triton_schemas.paths(),
    }


def _pages() -> Json:
    ready = silent("ready")
    return {
        "/": {"get": operation("playground", "A page to try the clients.", text("HTML", "text/html"))},
        "/docs": {"get": operation("docs", "This document, to read and try.", text("HTML", "text/html"))},
        "/dashboard": {"get": operation("dashboard", "Charts of the box itself.", text("HTML", "text/html"))},
        "/dashboard/data": {
            "get": {
                **operation(
                    "dashboardData", "The last hour in numbers.", ok("numbers", ref("History")), 400, 503
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
        "/page/{name}": {
            "parameters": in_path("name"),
            "get": operation("pageFile", "A file of these pages.", {"200": {"description": "it"}}, 404),
        },
        "/samples/{client}/{name}": {
            "parameters": in_path("client", "name"),
            "get": operation("sample", "A sample of a client.", {"200": {"description": "its bytes"}}, 404),
        },
        "/openapi.json": {
            "get": operation("document", "This document.", ok("OpenAPI 3.1", {"type": "object"}))
        },
        "/ping": {
            "get": operation("ping", "Whether the box is ready.", ready, 503),
            "post": operation("pingToo", "The same.", ready, 503),
        },
        "/execution-parameters": {
            "get": operation(
                "executionParameters", "For batch transform.", ok("how to send", ref("ExecutionParameters"))
            )
        },
        "/metrics": {"get": operation("metrics", "Prometheus series.", text("text", "text/plain"))},
    }


def _models() -> Json:
    model = ok("the model", ref("Model"))
    return {
        "/models": {
            "get": operation(
                "listModels", "What is served, or what is loaded.", ok("models", ref("Models")), 400
            ),
            "post": {
                **operation(
                    "loadModel",
                    "Multi-model mode: load an archive. A 405 otherwise.",
                    model,
                    *(400, 405, 409, 422, 500, 503, 507),
                ),
                "requestBody": body({"application/json": {"schema": strings("model_name", "url")}}),
            },
        },
        "/models/{name}": {
            "parameters": in_path("name"),
            "get": operation("getModel", "Where a model was loaded from.", model, 404),
            "delete": operation(
                "unloadModel",
                "Multi-model mode: unload. A 405 otherwise.",
                ok("unloaded", {"type": "object"}),
                *(404, 405, 409, 503),
            ),
        },
    }


def _endpoints(invoke: Json) -> Json:
    """Return the routes of SageMaker's runtime, where every error of the box is a 424."""
    replies = {"200": invoke["responses"]["200"], **failures(424)}
    events = {
        "200": {"description": "frames", "content": {"application/vnd.amazon.eventstream": {}}},
        **failures(424),
    }
    parameters = in_path("name")
    return {
        "/endpoints/{name}/invocations": {
            "parameters": parameters,
            "post": {
                **invoke,
                "operationId": "invokeEndpoint",
                "summary": "The same, as boto3 asks.",
                "responses": {**replies, **failures(413, 429, 503)},
            },
        },
        "/endpoints/{name}/invocations-response-stream": {
            "parameters": parameters,
            "post": {
                **invoke,
                "operationId": "invokeEndpointWithResponseStream",
                "summary": "The same in parts, as boto3 asks.",
                "responses": {**events, **failures(413, 429, 503)},
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
    takes = {
        "application/json": {"schema": {"anyOf": [*requests, ref("InferRequest"), ref("SessionRequest")]}},
        JSON_LINES: {"schema": {"type": "string"}},
        BINARY: {"schema": {}},
        **raw,
    }
    good = answer("the result", {"anyOf": [*answers, ref("InferAnswer"), ref("SessionAnswer")]})
    others = (JSON_LINES, BINARY, NPY, PNG, "text/event-stream", *(kind for kind in raw if kind == "*/*"))
    good["content"] |= {kind: {} for kind in others}
    return {
        "summary": "One payload or a list of them for a client, or tensors for a model.",
        "parameters": [*_addresses(), *_sagemaker()],
        "requestBody": body(takes),
        "responses": {"200": good, **failures(*FAILURES)},
    }


def _addresses() -> Iterable[Json]:
    for name, what in (("modelname", "The model of a body that names none."), ("version", "Its version.")):
        yield {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}


def _sagemaker() -> Iterable[Json]:
    for name, what in (
        ("Custom-Attributes", "`modelname=…;version=…`, and parameters of the client."),
        ("Target-Model", "The model of a body that names none."),
        ("Inference-Id", "The request's id in the log and in errors."),
        ("Session-Id", "A stateful session, or NEW_SESSION; 400 where sessions are off."),
    ):
        yield {
            "name": f"X-Amzn-SageMaker-{name}",
            "in": "header",
            "description": what,
            "schema": {"type": "string"},
        }
