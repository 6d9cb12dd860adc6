"""The platform's interface to models: who may use it, what it shows, and how much it can be sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, log_of_failed_start, memory_field, running_box, wait_until
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.reference.official import ADMIN, MultiModel
from tests.support.tritons import MODELS

#: Bytes of a body that the platform would never send: a load is one line.
BIG = 25 * 10**6
#: Bytes that the control plane may grow by. It held 288 MB of 20 such bodies.
LEEWAY = 32 * 2**20
SCRIPT = """
def model_fn(model_dir):
    return None

def transform_fn(model, data, content_type, accept):
    return data, content_type
"""
ROUTES = [("GET", "/models"), ("GET", "/models/a"), ("POST", "/models"), ("DELETE", "/models/a")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"admin-key": "wrong"}, {"admin-key": ""}])
def test_a_restricted_model_repository_is_restricted_in_the_platform_s_words_too(
    multi_model: MultiModel, method: str, path: str, headers: dict[str, str]
) -> None:
    refused = requests.request(method, f"{multi_model.box.url}{path}", headers=headers, json={}, timeout=10)
    assert refused.status_code == 403
    assert refused.json()["error"] == "This API is restricted, expecting header 'admin-key'"


def test_with_the_key_models_are_loaded_listed_found_and_unloaded(multi_model: MultiModel) -> None:
    multi_model.load_fresh("keyed")
    assert "keyed" in [row["modelName"] for row in multi_model.ask("GET", "/models").json()["models"]]
    assert multi_model.ask("GET", "/models/keyed").status_code == 200
    assert multi_model.ask("DELETE", "/models/keyed").status_code == 200
    assert multi_model.ask("GET", "/models/keyed").status_code == 404


def test_the_list_of_a_box_with_a_repository_needs_the_key_and_what_it_serves_does_not(
    single_box: RunningBox,
) -> None:
    for path in ("/models", "/models/echo"):
        assert requests.get(single_box.url + path, timeout=10).status_code == 403
        assert requests.get(single_box.url + path, headers=ADMIN, timeout=10).status_code == 200
    index = f"{single_box.url}/v2/repository/index"
    assert requests.post(index, timeout=10).status_code == 403
    assert requests.post(index, headers=ADMIN, timeout=10).status_code == 200
    assert single_box.ping()[0] == 200


@pytest.mark.parametrize("kind", ["flat", "nested", "ensemble", "script"])
def test_the_url_of_every_kind_of_archive_is_its_folder(multi_model: MultiModel, kind: str) -> None:
    name, platform = f"hash-of-{kind}", multi_model.platform
    if kind == "flat":
        url = platform.flat(name)
    elif kind == "nested":
        url = platform.nested(name, {"inner": multiplying_model(3)})
    elif kind == "ensemble":
        url = platform.nested(
            name, {"a": multiplying_model(), "b": multiplying_model(), "all": chain_config("a", "b")}
        )
    else:
        url = platform.nested(name, {}, inference=SCRIPT)
    loaded = multi_model.load(name, url)
    assert loaded.status_code == 200, loaded.text
    shown = {"modelName": name, "modelUrl": str(platform.home / name)}
    assert loaded.json() == shown
    assert multi_model.ask("GET", f"/models/{name}").json() == shown
    assert shown in multi_model.ask("GET", "/models").json()["models"]
    assert multi_model.ask("DELETE", f"/models/{name}").status_code == 200


@pytest.fixture(scope="module")
def open_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModel]:
    """Multi-model mode with nothing restricted."""
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
    [("GET", "/models/nobody"), ("DELETE", "/models/nobody"), ("POST", "/models/nobody/invoke")],
)
def test_a_404_names_what_is_loaded(open_box: MultiModel, method: str, path: str) -> None:
    for name in ("first", "second"):
        open_box.load_fresh(name)
    refused = open_box.ask(method, path, json={"inputs": []})
    assert refused.status_code == 404
    assert refused.json()["error"] == "no model 'nobody' is loaded; loaded are: first, second"
    assert refused.json()["models"] == ["first", "second"]


def test_a_404_names_nothing_where_the_list_is_restricted(multi_model: MultiModel) -> None:
    multi_model.load_fresh("secret")
    refused = requests.post(f"{multi_model.box.url}/models/nobody/invoke", json={"inputs": []}, timeout=10)
    assert (refused.status_code, refused.json()["error"]) == (404, "no model 'nobody' is loaded")


def control_memory(box: RunningBox) -> int:
    """Bytes of memory that the control plane has of its own."""
    return sum(memory_field(pid, "Pss_Anon") for pid in box.pids("sm.server.worker control"))


def test_twenty_large_bodies_for_the_control_plane_are_refused_and_leave_nothing(
    open_box: MultiModel,
) -> None:
    open_box.load_fresh("first")
    before = control_memory(open_box.box)
    body = b'{"model_name":"' + b"x" * BIG + b'"}'

    def post(_: int) -> tuple[int, dict[str, str]]:
        response = requests.post(f"{open_box.box.url}/models", data=body, timeout=60)
        return response.status_code, response.json()

    with ThreadPoolExecutor(20) as callers:
        answers = list(callers.map(post, range(20)))
    assert {status for status, _ in answers} == {413}
    assert {told["code"] for _, told in answers} == {"too_large"}
    assert {told["error"] for _, told in answers} == {
        "the body is larger than the 1048576 bytes this box accepts here"
    }
    assert control_memory(open_box.box) - before < LEEWAY


def test_what_the_control_plane_read_is_given_back(open_box: MultiModel) -> None:
    """Bodies that it does accept: a megabyte each, parsed into many objects."""
    open_box.load_fresh("first")
    before = control_memory(open_box.box)
    body = b"[" + b"[]," * (2**20 // 3 - 2) + b"[]]"
    with ThreadPoolExecutor(20) as callers:
        posted = callers.map(
            lambda _: requests.post(f"{open_box.box.url}/models", data=body, timeout=60).status_code,
            range(60),
        )
        assert set(posted) == {422}
    # Python keeps some of what many small objects took; it does not grow with further requests.
    wait_until(
        lambda: control_memory(open_box.box) - before < 2 * LEEWAY, description="the memory given back"
    )


@pytest.mark.parametrize(
    "path", ["/models", "/models/x", "/ping", "/metrics", "/execution-parameters", "/openapi.json", "/"]
)
def test_every_control_route_refuses_a_large_body(open_box: MultiModel, path: str) -> None:
    for data in (b"x" * (2**20 + 1), iter([b"x" * 2**20, b"x"])):
        refused = requests.post(f"{open_box.box.url}{path}", data=data, timeout=30)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large"), path


def test_a_body_under_the_limit_is_read(open_box: MultiModel) -> None:
    assert open_box.ask("POST", "/models", data=b" " * 2**20).status_code == 400


def test_without_nginx_the_limit_is_the_same(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    with running_box(tmp_path, tmp_path / "model", clients=(), TRIREME_NGINX="off") as box:
        for path in ("/models", "/ping", "/execution-parameters", "/"):
            refused = requests.request("GET", f"{box.url}{path}", data=b"x" * (2**20 + 1), timeout=30)
            assert (refused.status_code, refused.json()["code"]) == (413, "too_large"), path
        assert box.ping()[0] == 200


def test_a_default_model_that_is_not_there_stops_the_start_before_anything_is_loaded(tmp_path: Path) -> None:
    for name in ("echo", "words"):
        MODELS[name].write(tmp_path / "model" / name)
    log = log_of_failed_start(
        tmp_path,
        tmp_path / "model",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="ecco",
        # Nothing is started: there would be no Triton.
        TRIREME_TRITON_SERVER="/nowhere",
    )
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='ecco' is not served; there are: echo, words." in log
