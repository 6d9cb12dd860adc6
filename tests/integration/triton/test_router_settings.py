"""Settings that change what the router's routes do; the router is the real one, with a real Triton."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from sm.models.found_clients import models_of
from sm.settings import Settings
from tests.support.tritons import CreateRouter, TritonProcess


@pytest.fixture
def router(triton: TritonProcess, create_router: CreateRouter, request: pytest.FixtureRequest) -> FlaskClient:
    """A caller of the router. The parameter is a setting and its value."""
    variables: dict[str, str] = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "echo", **request.param}
    settings = Settings.read(variables)
    return create_router(settings, triton.box, models_of({}, models=("echo",))).test_client()


@pytest.mark.parametrize("router", [{"SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"}], indirect=True)
def test_invocations_may_be_set_to_generate(router: FlaskClient) -> None:
    response = router.post("/invocations", json={"x": [1.0, 2.0]})
    assert response.json == {"model_name": "echo", "model_version": "1", "y": [1.0, 2.0]}
    assert router.post("/invocations", data=b"{", content_type="application/json").status_code == 400


@pytest.mark.parametrize("router", [{"SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream"}], indirect=True)
def test_invocations_may_be_set_to_generate_stream(router: FlaskClient) -> None:
    stream = router.post("/invocations", json={"x": [[1.0]]})
    assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert stream.text == 'data: {"model_name":"echo","model_version":"1","y":1.0}\n\n'
    error = router.post("/invocations", json={"z": 1})
    assert (error.status_code, error.json and error.json["code"]) == (400, "bad_input")
