"""The OpenAPI document: its paths, those that most callers need first, and all of it put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sm import __version__, errors
from sm.control.openapi_schemas import (
    EXAMPLE_ID,
    Described,
    Json,
    allow_objects,
    answer,
    body,
    common,
    failures,
    get,
    of_client,
    ok,
    ok_with_text,
    ok_without_body,
    operation,
    ref,
    strings,
)
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
        "Triton": _triton(),
        "Operations": _operations(),
        "Pages": _pages(),
    }
    for group, described in groups.items():
        for path, item in described.items():
            for method in METHODS & item.keys():
                item[method]["tags"] = [group]
            if names := re.findall(r"{(\w+)}", path):
                item["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": TEXT} for name in names
                ]
    return {path: item for described in groups.values() for path, item in described.items()}


def _inference(invoke: Json) -> Json:
    in_path = {**invoke, "operationId": "invokeModel", "summary": "Invoke the model in the path."}
    upgraded = {"101": {"description": "The connection is a WebSocket now."}}
    return {
        "/invocations": {"post": {**invoke, "operationId": "invoke"}},
        "/models/{name}/invoke": {"post": in_path},
        "/invocations-bidirectional-stream": get(
            "converse", "Open a WebSocket, on which each message is an invocation.", upgraded, 400, 429, 503
        ),
    }


def _pages() -> Json:
    html, file = ok_with_text("HTML", "text/html"), {"200": {"description": "The file."}}
    return {
        "/": get("playground", "The playground: a page to try the clients.", html),
        "/docs": get("docs", "A page that shows this document.", html),
        "/dashboard": get("dashboard", "A page with charts of the box.", html),
        "/page/{name}": get("pageFile", "A script or style of these pages.", file, 404),
        "/samples/{client}/{name}": get("sample", "A file of a client's samples.", file, 404),
    }


def _operations() -> Json:
    ready, history = ok_without_body("The box is ready."), ok("The last hour.", ref("History"))
    numbers = get("dashboardData", "The numbers behind the dashboard.", history, 400, 503)
    numbers["get"]["parameters"] = [
        {
            "name": "since",
            "in": "query",
            "description": "The Unix time of the last point that the caller has.",
            "schema": {"type": "number"},
        }
    ]
    return {
        "/ping": {
            **get("ping", "Check whether the box is ready.", ready, 503),
            "post": operation("pingToo", "Check whether the box is ready, as with GET.", ready, 503),
        },
        "/execution-parameters": get(
            "executionParameters",
            "How batch transform should send requests.",
            ok("The parameters.", ref("ExecutionParameters")),
        ),
        "/metrics": get("metrics", "Metrics for Prometheus.", ok_with_text("The series.", "text/plain")),
        "/dashboard/data": numbers,
        "/openapi.json": get("document", "This document.", ok("OpenAPI 3.1", OBJECT)),
    }


def _models() -> Json:
    model, unloaded = ok("The model.", ref("Model")), ok("The model is unloaded.", OBJECT)
    archive = body({"application/json": {"schema": strings("model_name", "url")}})
    load, unload = "Load an archive in multi-model mode", "Unload a model in multi-model mode"
    loading = operation("loadModel", f"{load}; else a 405.", model, 400, 405, 409, 422, 500, 503, 507)
    return {
        "/models": {
            **get("listModels", "List the models that are served.", ok("The models.", ref("Models")), 400),
            "post": {**loading, "requestBody": archive},
        },
        "/models/{name}": {
            **get("getModel", "Describe a model.", model, 404),
            "delete": operation("unloadModel", f"{unload}; else a 405.", unloaded, 404, 405, 409, 503),
        },
    }


def _endpoints(invoke: Json) -> Json:
    """Describe the routes of SageMaker's runtime API, where every error of the box is a 424."""
    replies = {"200": invoke["responses"]["200"], **failures(424)}
    events = {
        "200": {"description": "Event-stream frames.", "content": {"application/vnd.amazon.eventstream": {}}},
        **failures(424),
    }
    summary = "Invoke as boto3 does with `{}`."
    one = {"operationId": "invokeEndpoint", "summary": summary.format("invoke_endpoint")}
    stream = {
        "operationId": "invokeEndpointWithResponseStream",
        "summary": summary.format("invoke_endpoint_with_response_stream"),
    }
    others = failures(413, 429, 503)
    return {
        "/endpoints/{name}/invocations": {"post": {**invoke, **one, "responses": {**replies, **others}}},
        "/endpoints/{name}/invocations-response-stream": {
            "post": {**invoke, **stream, "responses": {**events, **others}}
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
        "/v1/models": get(
            "listEmbeddingModels",
            "List the clients that give embeddings, as OpenAI lists models.",
            ok("The clients.", ref("EmbeddingModels")),
        ),
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


#: The error statuses of inference.
INFERENCE_FAILURES = (400, 403, 404, 413, 429, 500, 501, 503, 504, 507)
#: The error statuses of queries.
QUERY_FAILURES = (400, 404, 429, 503, 504)
OBJECT: Json = {"type": "object"}


def _triton() -> Json:
    """Describe the paths of Triton's v2 API that the box passes through."""
    server, statistics = ok("The server's metadata.", ref("Server")), ok("The statistics by model.", OBJECT)
    models = ok("The models.", {"type": "array", "items": OBJECT})
    live, ready = ok_without_body("Triton answers."), ok_without_body("All models are ready.")
    queries = {
        "/v2": ("server", "Describe the server.", server),
        "/v2/health/live": ("live", "Check whether Triton answers.", live),
        "/v2/health/ready": ("ready", "Check whether all models are ready.", ready),
        "/v2/models/stats": ("allStatistics", "Return the inference statistics of all models.", statistics),
    }
    index = operation("index", "List every model and its state.", models, *QUERY_FAILURES)
    return {
        **{path: get(*query, *QUERY_FAILURES) for path, query in queries.items()},
        "/v2/repository/index": {"post": index},
        **_model("/v2/models/{model}", ""),
        **_model("/v2/models/{model}/versions/{version}", "OfVersion"),
    }


def _model(path: str, suffix: str) -> Json:
    """Describe the paths of a model; ``suffix`` makes their operation ids unique."""
    metadata, statistics = ok("The model's metadata.", ref("ModelMetadata")), ok("The statistics.", OBJECT)
    ready = ok_without_body("The model is ready.")
    queries = {
        "": ("modelMetadata", "Describe a model's inputs and outputs.", metadata),
        "/ready": ("modelReady", "Check whether a model is ready.", ready),
        "/config": ("modelConfig", "Return a model's configuration.", ok("The configuration.", OBJECT)),
        "/stats": ("modelStatistics", "Return a model's inference statistics.", statistics),
    }
    flat = "Run a model on a flat JSON object."
    streamed = "Run a model on a flat JSON object, and stream its answers."
    inferences = {
        "/infer": ("infer", "Run a model on tensors.", {"200": _infer_answer()}, "InferRequest"),
        "/generate": ("generate", flat, ok("The answer.", OBJECT), "GenerateRequest"),
        "/generate_stream": ("generateStream", streamed, {"200": _events()}, "GenerateRequest"),
    }
    paths = {
        f"{path}{end}": get(f"{identity}{suffix}", summary, success, *QUERY_FAILURES)
        for end, (identity, summary, success) in queries.items()
    }
    for end, (identity, summary, success, request) in inferences.items():
        described = operation(f"{identity}{suffix}", summary, success, *INFERENCE_FAILURES)
        described["requestBody"] = body({"application/json": {"schema": ref(request)}})
        paths[f"{path}{end}"] = {"post": described}
    return paths


def _infer_answer() -> Json:
    response = answer("The output tensors.", ref("InferAnswer"))
    response["content"]["application/octet-stream"] = {}
    return response


def _events() -> Json:
    return {"description": "Server-sent events.", "content": {"text/event-stream": {}}}


SECURITY_SCHEMES: Json = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
#: Not in the document: no caller receives the first, a client's script chooses the status of the second, and
#: callers receive the third as a BadInput.
UNDOCUMENTED = (errors.CallerGone, errors.ChosenStatus, errors.WrongTensor)
PUBLIC_PATHS = ("/", "/docs", "/dashboard", "/page/{name}", "/ping")


def document(clients: Sequence[Described], s3: bool = False) -> Json:
    """Return the OpenAPI 3.1 document.

    Args:
        clients: Descriptions by :func:`~sm.router.client_schemas.describe_client`.
        s3: True if payloads and results in S3 are allowed.
    """
    schemas = common()
    for client in clients:
        schemas |= {**client["schemas"], **of_client(client)}
        if s3:
            allow_objects(schemas, client)
    _set_titles(schemas, {client["name"] for client in clients})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trireme",
            "version": __version__,
            "description": "A SageMaker container: clients picked by `modelname`, Triton behind them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _with_security(paths(clients)),
        # An empty object makes the others optional: a box may require API keys.
        "security": [{}, *({scheme: []} for scheme in SECURITY_SCHEMES)],
        "components": {
            "schemas": schemas,
            "responses": responses(clients),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _set_titles(schemas: Json, payloads: set[str]) -> None:
    """Give each schema a title of its own, such as ResnetOptions: generators name their classes by it."""
    taken: set[str] = set()
    for name in sorted(schemas, key=lambda name: "." in name or name in payloads):  # The box's own first.
        words = re.findall(r"[0-9A-Za-z]+", f"{name}.Payload" if name in payloads else name)
        title = base = "".join(word[0].upper() + word[1:] for word in words)
        number = 1
        while title in taken:
            number += 1
            title = f"{base}{number}"
        taken.add(title)
        schemas[name] = {**schemas[name], "title": title}


def _with_security(described: Json) -> Json:
    """Add the errors for an API key that is missing, wrong or used too often."""
    for path, item in described.items():
        for method in METHODS & item.keys():
            operation = item[method]
            if path in PUBLIC_PATHS:
                operation["security"] = []
            else:
                operation["responses"] = {**failures(401, 403, 429), **operation["responses"]}
    return described


def responses(clients: Sequence[Described]) -> Json:
    """Return ``Error404`` and the others; the 422 shows each client's error for an empty payload."""
    shared_responses = {
        f"Error{status}": _response(status) for status in sorted({kind.status for kind in kinds()})
    }
    client_examples = {
        client["name"]: {"value": client["error_example"]} for client in clients if client["error_example"]
    }
    _examples(shared_responses["Error422"]).update(client_examples)
    return {
        **shared_responses,
        "Error424": answer(
            "The form in which SageMaker's runtime passes on every error of the box.", ref("ModelError")
        ),
    }


def kinds() -> Iterator[type[errors.TriremeError]]:
    """Yield the error classes that callers receive, the most common first."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TriremeError) and kind not in UNDOCUMENTED:
            yield kind


def _response(status: int) -> Json:
    matching = [kind for kind in kinds() if kind.status == status]
    description = " ".join(
        (kind.__doc__ or "").split("\n")[0] for kind in matching if kind is not errors.TriremeError
    )
    response = answer(description, ref("Error"))
    _examples(response).update({kind.code: {"value": _example(kind)} for kind in matching})
    if any(kind.retry_after for kind in matching):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response


def _examples(response: Json) -> Json:
    examples: Json = response["content"]["application/json"].setdefault("examples", {})
    return examples


def _example(kind: type[errors.TriremeError]) -> Json:
    sentence = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return errors.error_body(sentence, kind.code, EXAMPLE_ID)
