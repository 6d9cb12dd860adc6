"""The v2 protocol (KServe's, as Triton speaks it) on ``/v2`` and in ``/invocations``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .container import JSON, Container, Question, assert_no_page, json_of, refused

pytestmark = pytest.mark.modes("single")
NOBODY = "there-is-no-such-model"


@pytest.fixture
def model(container: Container) -> str:
    """A model to ask."""
    container.expects(container.v2, "/v2/health/live is not 200")
    if not container.v2_model:
        container.unasked("no model is ready: name one with --model")
    return container.v2_model


@pytest.fixture
def tensors(container: Container, model: str) -> dict[str, Any]:
    """A request of ones for it."""
    if container.tensors is None:
        container.unasked(f"{model} does not take tensors of ones: name another with --model")
    return container.tensors


@pytest.mark.parametrize("path", ["health/live", "health/ready", "models/{model}/ready"])
def test_health(container: Container, model: str, path: str) -> None:
    assert container.ask("GET", f"/v2/{path.format(model=model)}").status_code == 200


def test_metadata(container: Container, model: str) -> None:
    assert json_of(container.ask("GET", "/v2"))["name"]
    found = json_of(container.ask("GET", f"/v2/models/{model}"))
    assert found["name"] == model
    assert {tuple(sorted(tensor)) for tensor in found["inputs"]} == {("datatype", "name", "shape")}


def test_configuration_and_statistics(container: Container, model: str) -> None:
    assert json_of(container.ask("GET", f"/v2/models/{model}/config"))["name"] == model
    rows = json_of(container.ask("GET", f"/v2/models/{model}/stats"))["model_stats"]
    assert {row["name"] for row in rows} == {model}


def test_the_repository_s_index(container: Container, model: str) -> None:
    rows = json_of(container.ask("POST", "/v2/repository/index", data=b"{}"))
    assert model in {row["name"] for row in rows}


def test_infer(container: Container, model: str, tensors: dict[str, Any]) -> None:
    found = json_of(container.ask("POST", f"/v2/models/{model}/infer", json={**tensors, "id": "mine"}))
    assert (found["model_name"], found["id"]) == (model, "mine")
    assert found["outputs"]


def test_a_version_may_be_in_the_path(container: Container, model: str, tensors: dict[str, Any]) -> None:
    version = json_of(container.ask("GET", f"/v2/models/{model}"))["versions"][0]
    answer = container.ask("POST", f"/v2/models/{model}/versions/{version}/infer", json=tensors)
    assert json_of(answer)["model_version"] == version


def test_an_unknown_model_or_version_is_a_client_s_error(
    container: Container, model: str, tensors: dict[str, Any]
) -> None:
    for path in (f"{NOBODY}/infer", f"{model}/versions/987654/infer"):
        answer = container.ask("POST", f"/v2/models/{path}", json=tensors)
        refused(answer)
        assert json_of(answer)["error"]


def test_invocations_takes_the_same_and_adds_or_loses_no_key(
    container: Container, model: str, tensors: dict[str, Any]
) -> None:
    question = container.addressed(Question(json.dumps(tensors).encode()))
    plain = json_of(container.ask("POST", f"/v2/models/{model}/infer", json=tensors))
    assert json_of(container.invoke(question)).keys() == plain.keys()


def test_a_wrong_tensor_is_refused_on_invocations(container: Container, tensors: dict[str, Any]) -> None:
    first, *others = tensors["inputs"]
    for wrong in ({**first, "name": "nobody"}, {**first, "shape": [1, 2, 3, 4, 5, 6]}, {**first, "data": []}):
        body = json.dumps({"inputs": [wrong, *others]}).encode()
        refused(container.invoke(container.addressed(Question(body))))


def test_generate_takes_a_flat_body(container: Container, model: str, tensors: dict[str, Any]) -> None:
    answer = container.ask("POST", f"/v2/models/{model}/generate", json=flat(tensors))
    if answer.status_code == 400:
        container.unasked(f"{model} is not for generate: {answer.text[:80]}")
    assert json_of(answer)["model_name"] == model


def test_generate_stream_is_server_sent_events_to_the_letter(
    container: Container, model: str, tensors: dict[str, Any]
) -> None:
    answer = container.ask("POST", f"/v2/models/{model}/generate_stream", json=flat(tensors))
    if answer.status_code == 400:
        container.unasked(f"{model} is not for generate: {answer.text[:80]}")
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *events, end = answer.text.split("\n\n")
    assert end == ""
    assert all(json.loads(event.removeprefix("data: "))["model_name"] == model for event in events)


def test_triton_s_own_client_works(container: Container, model: str, tensors: dict[str, Any]) -> None:
    if not container.url.startswith("http://"):
        container.unasked("tritonclient.http is only asked without TLS")
    http = pytest.importorskip("tritonclient.http", reason="could not be asked: tritonclient is not here")
    numpy = pytest.importorskip("numpy", reason="could not be asked: numpy is not here")
    utils = pytest.importorskip("tritonclient.utils")
    with http.InferenceServerClient(container.url.removeprefix("http://")) as client:
        assert client.is_server_ready()
        assert client.get_model_config(model)["name"] == model
        inputs = []
        for row in tensors["inputs"]:
            kind = utils.triton_to_np_dtype(row["datatype"])
            given = http.InferInput(row["name"], row["shape"], row["datatype"])
            given.set_data_from_numpy(numpy.array(row["data"], kind).reshape(row["shape"]))
            inputs.append(given)
        assert client.infer(model, inputs, request_id="mine").get_response()["id"] == "mine"


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models"])
def test_a_path_that_triton_has_not_is_a_404_in_json(container: Container, model: str, path: str) -> None:
    answer = container.ask("GET", path)
    assert answer.status_code == 404
    assert_no_page(answer)
    container.expects(JSON in answer.headers.get("Content-Type", ""), "it is no JSON")


def flat(tensors: dict[str, Any]) -> dict[str, Any]:
    """The form of ``generate``."""
    return {row["name"]: row["data"] if len(row["data"]) > 1 else row["data"][0] for row in tensors["inputs"]}
