"""Settings that change what the router's routes do; the router is the real one, with a real Triton."""

from __future__ import annotations

from flask.testing import FlaskClient

from sm.models.found_clients import models_of
from sm.settings import Settings
from tests.support.tritons import CreateRouter, TritonProcess


def router(triton: TritonProcess, create_router: CreateRouter, inference_type: str) -> FlaskClient:
    variables = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "echo",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": inference_type,
    }
    settings = Settings.read(variables)
    return create_router(settings, triton.box, models_of({}, models=("echo",))).test_client()


def test_invocations_may_be_set_to_generate(triton: TritonProcess, create_router: CreateRouter) -> None:
    http = router(triton, create_router, "generate")
    response = http.post("/invocations", json={"x": [1.0, 2.0]})
    assert response.json == {"model_name": "echo", "model_version": "1", "y": [1.0, 2.0]}
    assert http.post("/invocations", data=b"{", content_type="application/json").status_code == 400


def test_invocations_may_be_set_to_generate_stream(
    triton: TritonProcess, create_router: CreateRouter
) -> None:
    http = router(triton, create_router, "generate_stream")
    stream = http.post("/invocations", json={"x": [[1.0]]})
    assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert stream.text == 'data: {"model_name":"echo","model_version":"1","y":1.0}\n\n'
    error = http.post("/invocations", json={"z": 1})
    assert (error.status_code, error.json and error.json["code"]) == (400, "bad_input")
