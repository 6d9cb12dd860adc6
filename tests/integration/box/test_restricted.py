"""Every API of Triton restricted: callers of /v2 need the key, the box itself has it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
import requests

from sm.triton import health
from tests.support.boxes import CLIENT_FOLDERS, RunningBox, command_line, running_box, wait_until
from tests.support.tritons import MODELS

ALL = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
KEY = {"X-Key": "value"}
ROWS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


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
            f"--http-restricted-api={ALL}:X-Key=value --grpc-restricted-protocol={ALL}:key=secret"
        ),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as started:
        yield started


def test_the_box_is_ready_and_says_what_it_serves(box: RunningBox) -> None:
    assert box.ping()[0] == 200
    rows = requests.get(f"{box.url}/models", headers=KEY, timeout=5).json()["models"]
    assert {row["modelName"]: row["ready"] for row in rows} == {"doubling": True, "echo": True}
    assert "nv_inference" in requests.get(f"{box.url}/metrics", timeout=5).text


def test_a_client_is_served_with_no_key_through_shared_memory(box: RunningBox) -> None:
    for value in (1.0, 2.0):
        assert box.invoke("doubling", {"value": value}).json()["result"] == 2 * value
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") > 0


def test_a_caller_of_triton_needs_the_key(box: RunningBox) -> None:
    for path in ("/invocations", "/v2/models/echo/infer"):
        refused = requests.post(box.url + path, json=ROWS, timeout=5)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        answer = requests.post(box.url + path, json=ROWS, headers=KEY, timeout=5)
        assert answer.json()["outputs"][0]["data"] == [1, 2]
    for path in ("/v2/health/ready", "/v2", "/v2/models/echo/config", "/v2/models/stats"):
        assert requests.get(box.url + path, timeout=5).status_code == 403
        assert requests.get(box.url + path, headers=KEY, timeout=5).status_code == 200


def test_the_memory_of_a_killed_worker_is_let_go_of(box: RunningBox) -> None:
    assert box.invoke("doubling", {"value": 1}).status_code == 200
    (worker,) = {
        found[1] for name in box.shared_memory_files() if (found := re.match(r"trireme-\w+-(\d+)-", name))
    }
    os.kill(int(worker), signal.SIGKILL)
    wait_until(
        lambda: not [name for name in box.shared_memory_files() if f"-{worker}-" in name],
        description="no file of it",
    )
    (triton,) = box.pids("--http-port=")
    port = int(re.findall(r"--http-port=(\d+)", command_line(triton))[0])
    wait_until(
        lambda: not [name for name in health.regions(port, KEY) if f"-{worker}-" in name],
        description="no region",
    )
    wait_until(lambda: box.invoke("doubling", {"value": 3}).status_code == 200, description="another worker")
