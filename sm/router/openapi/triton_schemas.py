"""The paths of Triton's v2 API that the box passes through."""

from __future__ import annotations

from sm.router.openapi.parts import Json, answer, body, in_path, ok, operation, ref, silent

#: The error statuses of inference.
FAILURES = (400, 403, 404, 413, 429, 500, 501, 503, 504, 507)
#: The error statuses of queries.
ASKED = (400, 404, 429, 503, 504)
OBJECT: Json = {"type": "object"}


def paths() -> Json:
    return {
        "/v2": {"get": operation("server", "Triton's metadata.", ok("metadata", ref("Server")), *ASKED)},
        "/v2/health/live": {"get": operation("live", "Whether Triton lives.", silent("it does"), *ASKED)},
        "/v2/health/ready": {
            "get": operation("ready", "Whether its models are loaded.", silent("they are"), *ASKED)
        },
        "/v2/models/stats": {
            "get": operation("allStatistics", "What was asked so far.", ok("by model", OBJECT), *ASKED)
        },
        "/v2/repository/index": {
            "post": operation(
                "index", "Every model and its state.", ok("by model", {"type": "array"}), *ASKED
            )
        },
        **_model("/v2/models/{model}", "", "model"),
        **_model("/v2/models/{model}/versions/{version}", "OfVersion", "model", "version"),
    }


def _model(path: str, which: str, *names: str) -> Json:
    questions = {
        "": ("modelMetadata", "A model's tensors.", ok("metadata", ref("ModelMetadata"))),
        "/ready": ("modelReady", "Whether it is loaded.", silent("it is")),
        "/config": ("modelConfig", "Its configuration.", ok("configuration", OBJECT)),
        "/stats": ("modelStatistics", "What it was asked so far.", ok("statistics", OBJECT)),
    }
    work = {
        "/infer": ("infer", "Tensors to tensors.", "InferRequest", {"200": _inferred()}),
        "/generate": ("generate", "Flat JSON to flat JSON.", "GenerateRequest", ok("one answer", OBJECT)),
        "/generate_stream": ("generateStream", "The same in parts.", "GenerateRequest", {"200": _events()}),
    }
    parameters = in_path(*names)
    return {
        **{
            f"{path}{end}": {
                "parameters": parameters,
                "get": operation(f"{identity}{which}", what, good, *ASKED),
            }
            for end, (identity, what, good) in questions.items()
        },
        **{
            f"{path}{end}": {
                "parameters": parameters,
                "post": {
                    **operation(f"{identity}{which}", what, good, *FAILURES),
                    "requestBody": body({"application/json": {"schema": ref(takes)}}),
                },
            }
            for end, (identity, what, takes, good) in work.items()
        },
    }


def _inferred() -> Json:
    response = answer("tensors", ref("InferAnswer"))
    response["content"]["application/octet-stream"] = {}
    return response


def _events() -> Json:
    return {"description": "server-sent events", "content": {"text/event-stream": {}}}
