"""The platform's model routes: who may use them, what they return, and the largest body that they accept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.multi_model_endpoint import MultiModelEndpoint

#: Far more than the platform sends: a load is one line.
LARGE_BODY_BYTES = 25 * 10**6
#: How much the control plane may grow. It once held 288 MB of 20 such bodies.
MAX_GROWTH_BYTES = 32 * 2**20
ROUTES = [("GET", "/models"), ("GET", "/models/a"), ("POST", "/models"), ("DELETE", "/models/a")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"admin-key": "wrong"}, {"admin-key": ""}])
def test_a_restricted_model_repository_needs_its_key_on_the_platforms_routes_too(
    multi_model: MultiModelEndpoint, method: str, path: str, headers: dict[str, str]
) -> None:
    response = requests.request(method, f"{multi_model.box.url}{path}", headers=headers, json={}, timeout=10)
    assert response.status_code == 403
    assert "'admin-key'" in response.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models/unknown"), ("DELETE", "/models/unknown"), ("POST", "/models/unknown/invoke")],
)
def test_a_404_names_the_loaded_models(open_box: MultiModelEndpoint, method: str, path: str) -> None:
    for name in ("first", "second"):
        open_box.ensure_loaded(name)
    response = open_box.request(method, path, json={"inputs": []})
    assert response.status_code == 404
    assert {"first", "second"} <= set(response.json()["models"])


def test_a_404_names_no_models_if_the_list_is_restricted(multi_model: MultiModelEndpoint) -> None:
    multi_model.ensure_loaded("secret")
    response = requests.post(f"{multi_model.box.url}/models/unknown/invoke", json={"inputs": []}, timeout=10)
    assert response.status_code == 404
    assert "models" not in response.json()
    assert "secret" not in response.text


def control_plane_memory(box: RunningBox) -> int:
    """The control plane's private memory in bytes."""
    return sum(memory_field(pid, "Pss_Anon") for pid in box.pids("sm.server.worker control"))


def test_twenty_large_bodies_are_refused_and_do_not_stay_in_memory(
    open_box: MultiModelEndpoint,
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
    assert all("1048576" in error["error"] for _, error in responses)
    assert control_plane_memory(open_box.box) - memory_before < MAX_GROWTH_BYTES


def test_the_control_plane_frees_the_memory_of_parsed_bodies(open_box: MultiModelEndpoint) -> None:
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
