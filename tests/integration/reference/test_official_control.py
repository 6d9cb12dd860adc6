"""The platform's model routes: who may use them, what they return, and the largest body that they accept."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, log_of_failed_start, memory_field, running_box, wait_until
from tests.support.model_archives import ArchiveFolder
from tests.support.reference.official import ADMIN, MultiModel
from tests.support.tritons import MODELS

#: Far more than the platform sends: a load is one line.
LARGE_BODY_BYTES = 25 * 10**6
#: How much the control plane may grow. It once held 288 MB of 20 such bodies.
MAX_GROWTH_BYTES = 32 * 2**20
ROUTES = [("GET", "/models"), ("GET", "/models/a"), ("POST", "/models"), ("DELETE", "/models/a")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"admin-key": "wrong"}, {"admin-key": ""}])
def test_a_restricted_model_repository_needs_its_key_on_the_platforms_routes_too(
    multi_model: MultiModel, method: str, path: str, headers: dict[str, str]
) -> None:
    response = requests.request(method, f"{multi_model.box.url}{path}", headers=headers, json={}, timeout=10)
    assert response.status_code == 403
    assert response.json()["error"] == "This API is restricted, expecting header 'admin-key'"


def test_with_the_key_models_can_be_loaded_listed_and_unloaded(multi_model: MultiModel) -> None:
    multi_model.ensure_loaded("keyed")
    assert "keyed" in [model["modelName"] for model in multi_model.request("GET", "/models").json()["models"]]
    assert multi_model.request("GET", "/models/keyed").status_code == 200
    assert multi_model.request("DELETE", "/models/keyed").status_code == 200
    assert multi_model.request("GET", "/models/keyed").status_code == 404


def test_a_restricted_list_of_models_needs_the_key_but_ping_does_not(
    single_box: RunningBox,
) -> None:
    for path in ("/models", "/models/echo"):
        assert requests.get(single_box.url + path, timeout=10).status_code == 403
        assert requests.get(single_box.url + path, headers=ADMIN, timeout=10).status_code == 200
    index = f"{single_box.url}/v2/repository/index"
    assert requests.post(index, timeout=10).status_code == 403
    assert requests.post(index, headers=ADMIN, timeout=10).status_code == 200
    assert single_box.ping()[0] == 200


@pytest.fixture(scope="module")
def open_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModel]:
    """A box in multi-model mode whose model routes need no key."""
    folder = tmp_path_factory.mktemp("open")
    platform = ArchiveFolder(folder / "archives")
    with running_box(
        folder,
        folder / "nowhere",
        clients=(),
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        yield MultiModel(box, platform)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models/unknown"), ("DELETE", "/models/unknown"), ("POST", "/models/unknown/invoke")],
)
def test_a_404_names_the_loaded_models(open_box: MultiModel, method: str, path: str) -> None:
    for name in ("first", "second"):
        open_box.ensure_loaded(name)
    response = open_box.request(method, path, json={"inputs": []})
    assert response.status_code == 404
    assert response.json()["error"] == "no model 'unknown' is loaded; loaded are: first, second"
    assert response.json()["models"] == ["first", "second"]


def test_a_404_names_no_models_if_the_list_is_restricted(multi_model: MultiModel) -> None:
    multi_model.ensure_loaded("secret")
    response = requests.post(f"{multi_model.box.url}/models/unknown/invoke", json={"inputs": []}, timeout=10)
    assert (response.status_code, response.json()["error"]) == (404, "no model 'unknown' is loaded")


def control_plane_memory(box: RunningBox) -> int:
    """The control plane's private memory in bytes."""
    return sum(memory_field(pid, "Pss_Anon") for pid in box.pids("sm.server.worker control"))


def test_twenty_large_bodies_are_refused_and_do_not_stay_in_memory(
    open_box: MultiModel,
) -> None:
    open_box.ensure_loaded("first")
    memory_before = control_plane_memory(open_box.box)
    body = b'{"model_name":"' + b"x" * LARGE_BODY_BYTES + b'"}'

    def post(_: int) -> tuple[int, dict[str, str]]:
        response = requests.post(f"{open_box.box.url}/models", data=body, timeout=60)
        return response.status_code, response.json()

    with ThreadPoolExecutor(20) as callers:
        responses = list(callers.map(post, range(20)))
    assert {status for status, _ in responses} == {413}
    assert {error["code"] for _, error in responses} == {"too_large"}
    assert {error["error"] for _, error in responses} == {
        "the body is larger than the 1048576 bytes this box accepts here"
    }
    assert control_plane_memory(open_box.box) - memory_before < MAX_GROWTH_BYTES


def test_the_control_plane_frees_the_memory_of_parsed_bodies(open_box: MultiModel) -> None:
    """Bodies within the limit: a megabyte each, parsed into many objects."""
    open_box.ensure_loaded("first")
    memory_before = control_plane_memory(open_box.box)
    body = b"[" + b"[]," * (2**20 // 3 - 2) + b"[]]"
    with ThreadPoolExecutor(20) as callers:
        statuses = callers.map(
            lambda _: requests.post(f"{open_box.box.url}/models", data=body, timeout=60).status_code,
            range(60),
        )
        assert set(statuses) == {422}
    # Python keeps some memory of many small objects, but it does not grow with further requests.
    wait_until(
        lambda: control_plane_memory(open_box.box) - memory_before < 2 * MAX_GROWTH_BYTES,
        description="the memory given back",
    )


@pytest.mark.parametrize(
    "path", ["/models", "/models/x", "/ping", "/metrics", "/execution-parameters", "/openapi.json", "/"]
)
def test_every_control_route_refuses_a_large_body(open_box: MultiModel, path: str) -> None:
    for data in (b"x" * (2**20 + 1), iter([b"x" * 2**20, b"x"])):
        response = requests.post(f"{open_box.box.url}{path}", data=data, timeout=30)
        assert (response.status_code, response.json()["code"]) == (413, "too_large"), path


def test_a_body_at_the_limit_is_read(open_box: MultiModel) -> None:
    assert open_box.request("POST", "/models", data=b" " * 2**20).status_code == 400


def test_without_nginx_the_limit_is_the_same(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    with running_box(tmp_path, tmp_path / "model", clients=(), TRIREME_NGINX="off") as box:
        for path in ("/models", "/ping", "/execution-parameters", "/"):
            response = requests.request("GET", f"{box.url}{path}", data=b"x" * (2**20 + 1), timeout=30)
            assert (response.status_code, response.json()["code"]) == (413, "too_large"), path
        assert box.ping()[0] == 200


def test_a_default_model_that_does_not_exist_stops_the_start_before_a_load(tmp_path: Path) -> None:
    for name in ("echo", "words"):
        MODELS[name].write(tmp_path / "model" / name)
    log = log_of_failed_start(
        tmp_path,
        tmp_path / "model",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="ecco",
        # The start fails before it looks for Triton.
        TRIREME_TRITON_SERVER="/nowhere",
    )
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='ecco' is not served; there are: echo, words." in log
