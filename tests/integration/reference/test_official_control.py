"""The platform's model routes: who may use them, what they return, and the largest body that they accept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.multi_model_endpoint import MultiModelEndpoint

#: How much the control plane may grow. It once held 288 MB of 20 such bodies.
MAX_GROWTH_BYTES = 32 * 2**20
ROUTES = [("GET", "/models"), ("GET", "/models/a"), ("POST", "/models"), ("DELETE", "/models/a")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"admin-key": "wrong"}, {"admin-key": ""}])
def test_a_restricted_model_repository_needs_its_key_on_the_platforms_routes_too(
    multi_model: MultiModelEndpoint, method: str, path: str, headers: dict[str, str]
) -> None:
    response = requests.request(method, f"{multi_model.url}{path}", headers=headers, json={}, timeout=10)
    assert response.status_code == 403
    assert "'admin-key'" in response.json()["error"]


def test_a_404_names_no_models_if_the_list_is_restricted(multi_model: MultiModelEndpoint) -> None:
    multi_model.ensure_loaded("secret")
    response = multi_model.invoke("unknown", {"inputs": []})
    assert (response.status_code, "models" in response.json()) == (404, False)
    assert b"secret" not in response.content


def control_plane_memory(box: RunningBox) -> int:
    """The control plane's private memory in bytes."""
    return sum(memory_field(pid, "Pss_Anon") for pid in box.pids("sm.server.control_plane"))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        # Far more than the platform sends: a load is one line.
        pytest.param(b'{"model_name":"' + b"x" * 25 * 10**6 + b'"}', "too_large", id="25 MB"),
        # Within the limit: a megabyte, parsed into many objects.
        pytest.param(b"[" + b"[]," * (2**20 // 3 - 2) + b"[]]", "wrong_payload", id="many objects"),
    ],
)
def test_twenty_large_bodies_are_refused_and_do_not_stay_in_memory(
    multi_model: MultiModelEndpoint, body: bytes, code: str
) -> None:
    memory_before = control_plane_memory(multi_model.box)

    def post(_: int) -> object:
        return multi_model.request("POST", "/models", data=body).json()["code"]

    with ThreadPoolExecutor(20) as callers:
        assert set(callers.map(post, range(40))) == {code}
    # Python keeps some memory of many small objects, but it does not grow with further requests.
    wait_until(
        lambda: control_plane_memory(multi_model.box) - memory_before < 2 * MAX_GROWTH_BYTES,
        description="the memory given back",
    )
