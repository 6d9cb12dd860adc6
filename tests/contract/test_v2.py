"""The v2 protocol (KServe's, as Triton speaks it) on ``/v2`` and in ``/invocations``."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from .container import (
    JSON,
    UNKNOWN_MODEL,
    Container,
    ModelRequest,
    assert_not_html,
    assert_refused,
    read_json,
)

pytestmark = pytest.mark.modes("single")


@pytest.fixture(autouse=True)
def require_model(container: Container) -> None:
    """The container has the protocol, and a model that is ready."""
    container.expect(container.has_v2, "/v2/health/live is not 200")
    if not container.v2_model:
        container.cannot_tell("no model is ready: name one with --model")


@pytest.fixture
def tensors(container: Container) -> dict[str, Any]:
    """A v2 request of ones for the model."""
    if container.tensors_of_ones is None:
        container.cannot_tell(
            f"{container.v2_model} does not take tensors of ones: name another with --model"
        )
    return container.tensors_of_ones


def ask_model(container: Container, path: str = "", **members: Any) -> Any:
    """Return the JSON of a route of the model: POST if there are members of a body, else GET."""
    method, options = ("POST", {"json": members}) if members else ("GET", {})
    return read_json(container.request(method, f"/v2/models/{container.v2_model}{path}", **options))


@pytest.mark.parametrize("path", ["health/live", "health/ready", "models/{model}/ready"])
def test_the_server_and_the_model_are_live_and_ready(container: Container, path: str) -> None:
    assert container.request("GET", f"/v2/{path.format(model=container.v2_model)}").status_code == 200


def test_metadata_lists_the_models_inputs(container: Container) -> None:
    assert read_json(container.request("GET", "/v2"))["name"]
    metadata = ask_model(container)
    assert metadata["name"] == container.v2_model
    assert {tuple(sorted(tensor)) for tensor in metadata["inputs"]} == {("datatype", "name", "shape")}


def test_the_configuration_and_statistics_are_of_the_model(container: Container) -> None:
    assert ask_model(container, "/config")["name"] == container.v2_model
    assert {row["name"] for row in ask_model(container, "/stats")["model_stats"]} == {container.v2_model}


def test_the_repository_index_lists_the_model(container: Container) -> None:
    rows = read_json(container.request("POST", "/v2/repository/index", data=b"{}"))
    assert container.v2_model in {row["name"] for row in rows}


def test_infer_keeps_the_requests_id_and_returns_outputs(
    container: Container, tensors: dict[str, Any]
) -> None:
    inference = ask_model(container, "/infer", id="mine", **tensors)
    assert (inference["model_name"], inference["id"]) == (container.v2_model, "mine")
    assert inference["outputs"]


def test_a_version_may_be_in_the_path(container: Container, tensors: dict[str, Any]) -> None:
    version = ask_model(container)["versions"][0]
    assert ask_model(container, f"/versions/{version}/infer", **tensors)["model_version"] == version


def test_an_unknown_model_or_version_is_a_client_s_error(
    container: Container, tensors: dict[str, Any]
) -> None:
    for path in (f"{UNKNOWN_MODEL}/infer", f"{container.v2_model}/versions/987654/infer"):
        answer = container.request("POST", f"/v2/models/{path}", json=tensors)
        assert_refused(answer)
        assert read_json(answer)["error"]


def test_invocations_returns_the_same_keys_as_v2(container: Container, tensors: dict[str, Any]) -> None:
    request = container.with_target_model(ModelRequest(json.dumps(tensors).encode()))
    assert read_json(container.invoke(request)).keys() == ask_model(container, "/infer", **tensors).keys()


def test_a_wrong_tensor_is_refused_on_invocations(container: Container, tensors: dict[str, Any]) -> None:
    first_input, *other_inputs = tensors["inputs"]
    wrongs: list[dict[str, Any]] = [{"name": "unknown"}, {"shape": [1, 2, 3, 4, 5, 6]}, {"data": []}]
    for wrong in wrongs:
        body = json.dumps({"inputs": [{**first_input, **wrong}, *other_inputs]}).encode()
        assert_refused(container.invoke(container.with_target_model(ModelRequest(body))))


def generate(container: Container, verb: str, tensors: dict[str, Any]) -> requests.Response:
    """Send the tensors as a body for ``generate``."""
    rows = tensors["inputs"]
    body = {row["name"]: row["data"] if len(row["data"]) > 1 else row["data"][0] for row in rows}
    response = container.request("POST", f"/v2/models/{container.v2_model}/{verb}", json=body)
    if response.status_code == 400:
        container.cannot_tell(f"{container.v2_model} is not for generate: {response.text[:80]}")
    return response


def test_generate_takes_a_flat_body(container: Container, tensors: dict[str, Any]) -> None:
    assert read_json(generate(container, "generate", tensors))["model_name"] == container.v2_model


def test_generate_stream_sends_server_sent_events(container: Container, tensors: dict[str, Any]) -> None:
    response = generate(container, "generate_stream", tensors)
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *events, end = response.text.split("\n\n")
    assert end == ""
    names = {json.loads(event.removeprefix("data: "))["model_name"] for event in events}
    assert names == {container.v2_model}


def test_triton_s_own_client_works(container: Container, tensors: dict[str, Any]) -> None:
    if not container.url.startswith("http://"):
        container.cannot_tell("tritonclient.http is tried without TLS only")
    http = pytest.importorskip("tritonclient.http", reason="could not be asked: tritonclient is not here")
    numpy = pytest.importorskip("numpy", reason="could not be asked: numpy is not here")
    utils = pytest.importorskip("tritonclient.utils")
    with http.InferenceServerClient(container.url.removeprefix("http://")) as client:
        assert client.is_server_ready()
        assert client.get_model_config(container.v2_model)["name"] == container.v2_model
        inputs = []
        for row in tensors["inputs"]:
            dtype = utils.triton_to_np_dtype(row["datatype"])
            tensor = http.InferInput(row["name"], row["shape"], row["datatype"])
            tensor.set_data_from_numpy(numpy.array(row["data"], dtype).reshape(row["shape"]))
            inputs.append(tensor)
        inference = client.infer(container.v2_model, inputs, request_id="mine")
        assert inference.get_response()["id"] == "mine"


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models"])
def test_a_path_that_triton_lacks_is_a_404_in_json(container: Container, path: str) -> None:
    response = container.request("GET", path)
    assert response.status_code == 404
    assert_not_html(response)
    container.expect(JSON in response.headers.get("Content-Type", ""), "the 404 is not JSON")
