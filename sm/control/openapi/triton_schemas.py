"""The paths of Triton's v2 API that the box passes through."""

from __future__ import annotations

from sm.control.openapi.parts import Json, answer, body, in_path, ok, ok_without_body, operation, ref

#: The error statuses of inference.
INFERENCE_FAILURES = (400, 403, 404, 413, 429, 500, 501, 503, 504, 507)
#: The error statuses of queries.
QUERY_FAILURES = (400, 404, 429, 503, 504)
OBJECT: Json = {"type": "object"}


def paths() -> Json:
    return {
        "/v2": {
            "get": operation(
                "server", "Describe the server.", ok("The server's metadata.", ref("Server")), *QUERY_FAILURES
            )
        },
        "/v2/health/live": {
            "get": operation(
                "live", "Check whether Triton answers.", ok_without_body("Triton answers."), *QUERY_FAILURES
            )
        },
        "/v2/health/ready": {
            "get": operation(
                "ready",
                "Check whether all models are ready.",
                ok_without_body("All models are ready."),
                *QUERY_FAILURES,
            )
        },
        "/v2/models/stats": {
            "get": operation(
                "allStatistics",
                "Return the inference statistics of all models.",
                ok("The statistics by model.", OBJECT),
                *QUERY_FAILURES,
            )
        },
        "/v2/repository/index": {
            "post": operation(
                "index",
                "List every model and its state.",
                ok("The models.", {"type": "array", "items": OBJECT}),
                *QUERY_FAILURES,
            )
        },
        **_model("/v2/models/{model}", "", "model"),
        **_model("/v2/models/{model}/versions/{version}", "OfVersion", "model", "version"),
    }


def _model(path: str, suffix: str, *names: str) -> Json:
    """Describe the paths of a model; ``suffix`` makes their operation ids unique."""
    queries = {
        "": (
            "modelMetadata",
            "Describe a model's inputs and outputs.",
            ok("The model's metadata.", ref("ModelMetadata")),
        ),
        "/ready": ("modelReady", "Check whether a model is ready.", ok_without_body("The model is ready.")),
        "/config": ("modelConfig", "Return a model's configuration.", ok("The configuration.", OBJECT)),
        "/stats": (
            "modelStatistics",
            "Return a model's inference statistics.",
            ok("The statistics.", OBJECT),
        ),
    }
    inferences = {
        "/infer": ("infer", "Run a model on tensors.", "InferRequest", {"200": _infer_answer()}),
        "/generate": (
            "generate",
            "Run a model on a flat JSON object.",
            "GenerateRequest",
            ok("The answer.", OBJECT),
        ),
        "/generate_stream": (
            "generateStream",
            "Run a model on a flat JSON object, and stream its answers.",
            "GenerateRequest",
            {"200": _events()},
        ),
    }
    parameters = in_path(*names)
    return {
        **{
            f"{path}{end}": {
                "parameters": parameters,
                "get": operation(f"{identity}{suffix}", summary, success, *QUERY_FAILURES),
            }
            for end, (identity, summary, success) in queries.items()
        },
        **{
            f"{path}{end}": {
                "parameters": parameters,
                "post": {
                    **operation(f"{identity}{suffix}", summary, success, *INFERENCE_FAILURES),
                    "requestBody": body({"application/json": {"schema": ref(request)}}),
                },
            }
            for end, (identity, summary, request, success) in inferences.items()
        },
    }


def _infer_answer() -> Json:
    response = answer("The output tensors.", ref("InferAnswer"))
    response["content"]["application/octet-stream"] = {}
    return response


def _events() -> Json:
    return {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
