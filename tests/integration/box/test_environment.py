"""Each environment variable has its effect on the real processes: command lines, ports and responses."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_ports, listening_ports, wait_until
from tests.support.tritons import ECHO_BODY, ECHO_REQUEST, MODELS

BROKEN = replace(MODELS["fixed"], head=f"import no_such_module\n{MODELS['fixed'].head}")
ALL_APIS = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
KEY, GRPC_KEY = {"admin-key": "admin-value"}, {"triton-grpc-protocol-key": "secret"}
HTTP, GRPC, METRICS = free_ports(3)
#: Variables with their values, and the options that they become.
OPTIONS = {
    "SAGEMAKER_TRITON_HTTP_PORT": (str(HTTP), f"--http-port={HTTP}"),
    "SAGEMAKER_TRITON_GRPC_PORT": (str(GRPC), f"--grpc-port={GRPC}"),
    "SAGEMAKER_TRITON_METRICS_PORT": (str(METRICS), f"--metrics-port={METRICS}"),
    "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": ("2", "--buffer-manager-thread-count=2"),
    "SAGEMAKER_TRITON_THREAD_COUNT": ("3", "--http-thread-count=3"),
    "SAGEMAKER_TRITON_LOG_VERBOSE": ("true", "--log-verbose=1"),
    "SAGEMAKER_TRITON_LOG_INFO": ("false", "--log-info=false"),
    "SAGEMAKER_TRITON_LOG_WARNING": ("0", "--log-warning=false"),
    "SAGEMAKER_TRITON_LOG_ERROR": ("no", "--log-error=false"),
    "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": (
        str(2**21),
        f"--backend-config=python,shm-default-byte-size={2**21}",
    ),
    "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE": (
        str(2**17),
        f"--backend-config=python,shm-growth-byte-size={2**17}",
    ),
}


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box with nearly every variable set, all APIs of Triton restricted, and one model that cannot be loaded."""
    variables: dict[str, Any] = {variable: value for variable, (value, _) in OPTIONS.items()}
    with boxes.own(
        {**{name: MODELS[name] for name in ("echo", "slow", "fixed")}, "broken": BROKEN},
        ("platform", "box", "patient", "locked", {"unloadable.py": "import no_such_module\n"}),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_OVERRIDE_PING_MODE="live",
        SAGEMAKER_SAFE_PORT_RANGE=f"{HTTP}-{METRICS}",
        SAGEMAKER_TRITON_ALLOW_GRPC="true",
        SAGEMAKER_TRITON_ALLOW_METRICS="true",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=(
            f"--http-restricted-api={ALL_APIS}:admin-key=admin-value "
            f"--grpc-restricted-protocol {ALL_APIS}:key=secret --min-supported-compute-capability '5.2'"
        ),
        SAGEMAKER_MODEL_SERVER_WORKERS="3",
        SAGEMAKER_MAX_REQUEST_SIZE="5000",
        SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="application/x-npy",
        SAGEMAKER_CONTAINER_LOG_LEVEL="40",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="3600",
        TRIREME_DRAIN_SECONDS="1",
        TRIREME_LOG_FORMAT="text",
        TRIREME_BROKEN_CLIENTS="skip",
        **variables,
    ) as started:
        yield started


def test_a_variable_becomes_an_option_of_triton(box: RunningBox) -> None:
    command = Path(f"/proc/{box.pid('--model-repository=')}/cmdline").read_text().split("\0")
    assert {option for _, option in OPTIONS.values()} <= {*command}
    # Additional arguments come last, split as a shell does.
    assert command[-3:-1] == ["--min-supported-compute-capability", "5.2"]


def test_ping_in_live_mode_is_200_beside_a_model_that_cannot_load(box: RunningBox) -> None:
    assert box.ping()[0] == 200
    rows = requests.get(f"{box.url}/models", headers=KEY, timeout=5).json()["models"]
    assert [row["ready"] for row in rows if row["modelName"] == "broken"] == [False]


def test_tritons_own_grpc_client_works_against_the_open_port(box: RunningBox) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{GRPC}") as client:
        tensor = triton.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.arange(3, dtype=np.float32)[None])
        assert client.infer("echo", [tensor], headers=GRPC_KEY).as_numpy("y").tolist() == [[0, 1, 2]]
        assert client.is_server_ready(headers=GRPC_KEY) is False
        rows = client.get_model_repository_index(headers=GRPC_KEY).models
        assert {row.name for row in rows} == {"echo", "slow", "fixed", "broken"}
        with pytest.raises(InferenceServerException):
            client.get_model_repository_index()


def test_only_the_ports_that_are_allowed_are_open_and_metrics_answers(box: RunningBox) -> None:
    addresses = listening_ports(box.pid("--model-repository="))
    assert {port for port, address in addresses.items() if set(address) == {"0"}} == {GRPC, METRICS}
    assert addresses[HTTP] == "0100007F"
    assert requests.get(f"http://127.0.0.1:{METRICS}/metrics", timeout=5).status_code == 200


def test_a_caller_that_accepts_anything_gets_the_default_accept(box: RunningBox) -> None:
    body = json.dumps({"modelname": "probe", "payload": {"numbers": [1, 2]}}).encode()
    response = box.send(body, headers={"Accept": "*/*"})
    assert response.headers["Content-Type"] == "application/x-npy"
    assert np.load(io.BytesIO(response.content), allow_pickle=False).tolist() == [1, 2]
    assert box.send(body, headers={"Accept": "application/json"}).json()["result"] == [1, 2]


def test_at_log_level_error_an_invocation_is_not_logged(box: RunningBox) -> None:
    """And what is logged is plain text."""
    headers = {"X-Amzn-SageMaker-Inference-Id": "quiet-one", **KEY}
    assert box.send(ECHO_BODY, headers=headers).ok
    lines = box.log.read_text().splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("{") or "quiet-one" in line]


def test_callers_of_a_client_need_no_key_and_shared_memory_works(box: RunningBox) -> None:
    json_accepted = {"Accept": "application/json"}
    for value in (1.0, 2.0):
        body = json.dumps({"modelname": "doubling", "payload": {"value": value}}).encode()
        assert box.send(body, headers=json_accepted).json()["result"] == 2 * value
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") > 0
    assert box.metric("nv_inference_request_success", model="fixed") > 0


def test_callers_of_triton_need_the_key(box: RunningBox) -> None:
    def ask(method: str, path: str, key: dict[str, str]) -> requests.Response:
        body = ECHO_REQUEST if method == "POST" else None
        return requests.request(method, box.url + path, json=body, headers=key, timeout=5)

    gets = ("/models", "/v2", "/v2/health/live", "/v2/models/echo/config", "/v2/models/stats")
    for method, path in (
        *(("POST", path) for path in ("/invocations", "/v2/models/echo/infer", "/v2/repository/index")),
        *(("GET", path) for path in gets),
    ):
        refused = ask(method, path, {})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
        assert ask(method, path, KEY).status_code == 200, path


def test_a_broken_client_is_skipped_if_the_setting_says_so(box: RunningBox) -> None:
    assert box.invoke("unloadable", {}).status_code == 404


@pytest.mark.exhaustive
def test_a_request_may_take_longer_than_a_minute_in_any_part_of_the_box(box: RunningBox) -> None:
    """The default time-outs of gunicorn, nginx and the box are a minute or less."""

    def ask(stage: str) -> int:
        body = {"modelname": "patient", "payload": {"seconds": 63, "how": stage}}
        accept, url = {"Accept": "application/json"}, f"{box.url}/invocations"
        return requests.post(url, json=body, headers=accept, timeout=300).status_code

    workers = box.workers()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, ("locked", "asleep", "triton"))) == [200] * 3
    assert box.workers() == workers


def test_a_short_drain_ends_a_long_request(box: RunningBox) -> None:
    """The last test of this box."""
    with ThreadPoolExecutor(1) as pool:
        # Longer than the test waits for the end of the box.
        long_request = pool.submit(box.invoke, "slow", {"seconds": 500}, timeout=600)
        wait_until(lambda: box.metric("trireme_in_flight"), description="the start of the request")
        assert box.stop() == 0
        assert long_request.exception() or long_request.result().status_code == 503
