"""If every API of Triton is restricted, callers of /v2 need the key and the box itself uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.echo_requests import ECHO_REQUEST
from tests.support.tritons import MODELS

ALL_APIS = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
KEY = {"X-Key": "value"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("restricted")
    for name in ("echo", "fixed"):
        MODELS[name].write(folder / "model" / name)
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENT_FOLDERS / "locked",),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=(
            f"--http-restricted-api={ALL_APIS}:X-Key=value --grpc-restricted-protocol={ALL_APIS}:key=secret"
        ),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as started:
        yield started


def test_a_box_with_restricted_apis_is_ready_and_lists_its_models(box: RunningBox) -> None:
    assert box.ping()[0] == 200
    rows = requests.get(f"{box.url}/models", headers=KEY, timeout=5).json()["models"]
    assert {row["modelName"]: row["ready"] for row in rows} == {"doubling": True, "echo": True}
    assert "nv_inference" in box.scrape()


def test_callers_of_a_client_need_no_key_and_shared_memory_works(box: RunningBox) -> None:
    for value in (1.0, 2.0):
        assert box.invoke("doubling", {"value": value}).json()["result"] == 2 * value
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") > 0


def test_callers_of_triton_need_the_key(box: RunningBox) -> None:
    for path in ("/invocations", "/v2/models/echo/infer"):
        response_without_key = requests.post(box.url + path, json=ECHO_REQUEST, timeout=5)
        assert (response_without_key.status_code, response_without_key.json()["code"]) == (403, "forbidden")
        response_with_key = requests.post(box.url + path, json=ECHO_REQUEST, headers=KEY, timeout=5)
        assert response_with_key.json()["outputs"][0]["data"] == [1, 2]
    for path in ("/v2/health/ready", "/v2", "/v2/models/echo/config", "/v2/models/stats"):
        assert requests.get(box.url + path, timeout=5).status_code == 403
        assert requests.get(box.url + path, headers=KEY, timeout=5).status_code == 200
