"""Each environment variable has its effect on the real processes: command lines, ports and responses."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sm.server.supervisor import ports
from sm.settings import Settings
from tests.support.box_fixture import Boxes
from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, command_line, descendants, wait_until
from tests.support.listening import listening_ports
from tests.support.tritons import MODELS

BROKEN = replace(MODELS["fixed"], head=f"import no_such_module\n{MODELS['fixed'].head}")
RESTRICTED_APIS = (
    "--http-restricted-api=metadata,model-repository,health:admin-key=admin-value "
    "--grpc-restricted-protocol model-repository,metadata,model-config:admin-key=admin-value "
    "--min-supported-compute-capability '5.2'"
)
ALL_APIS = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
KEY = {"admin-key": "admin-value"}
GRPC_KEY = {"triton-grpc-protocol-admin-key": "admin-value"}
X = np.arange(3, dtype=np.float32)[None]
V2_REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 1, 2]}]}


@pytest.fixture(scope="module")
def configured_box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box with nearly every variable set, and one model of two that cannot be loaded."""
    with boxes.own(
        {"echo": MODELS["echo"], "broken": BROKEN},
        ("platform", "box"),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_OVERRIDE_PING_MODE="live",
        SAGEMAKER_SAFE_PORT_RANGE="21000-21400",
        SAGEMAKER_TRITON_ALLOW_GRPC="true",
        SAGEMAKER_TRITON_ALLOW_METRICS="true",
        SAGEMAKER_TRITON_HTTP_PORT="21007",
        SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT="2",
        SAGEMAKER_TRITON_THREAD_COUNT="3",
        SAGEMAKER_TRITON_LOG_VERBOSE="true",
        SAGEMAKER_TRITON_LOG_INFO="false",
        SAGEMAKER_TRITON_LOG_WARNING="0",
        SAGEMAKER_TRITON_LOG_ERROR="no",
        SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE=str(2**21),
        SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE=str(2**17),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED_APIS,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        MODEL_SERVER_WORKERS="2",
        SAGEMAKER_MAX_PAYLOAD_IN_MB="1",
        SAGEMAKER_MAX_REQUEST_SIZE="5000",
        SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="application/x-npy",
        SAGEMAKER_CONTAINER_LOG_LEVEL="40",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="3600",
        TRIREME_DRAIN_SECONDS="1",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def triton_command(configured_box: RunningBox) -> list[str]:
    """Triton's command line, from the kernel."""
    pid = configured_box.pid("--model-repository=")
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def option_value(triton_command: list[str], name: str) -> str:
    return next(
        argument.partition("=")[2] for argument in triton_command if argument.startswith(f"--{name}=")
    )


def test_a_variable_becomes_an_option_of_triton(triton_command: list[str]) -> None:
    options = dict(word.removeprefix("--").split("=", 1) for word in triton_command if "=" in word)
    expected = {
        "buffer-manager-thread-count": "2",
        "http-thread-count": "3",
        "log-verbose": "1",
        "log-info": "false",
        "log-warning": "false",
        "log-error": "false",
        "http-port": "21007",
    }
    assert {name: options[name] for name in expected} == expected
    for option in (
        f"python,shm-default-byte-size={2**21}",
        f"python,shm-growth-byte-size={2**17}",
        "python,shm-region-prefix-name=",
    ):
        assert any(word.startswith(f"--backend-config={option}") for word in triton_command)
    # Additional arguments come last, split as a shell does.
    assert triton_command[-3:-1] == ["--min-supported-compute-capability", "5.2"]
    assert "--grpc-restricted-protocol" in triton_command
    assert "model-repository,metadata,model-config:admin-key=admin-value" in triton_command


def test_ping_in_live_mode_is_200_beside_a_model_that_cannot_load(configured_box: RunningBox) -> None:
    assert configured_box.ping()[0] == 200
    response = configured_box.send(json.dumps(V2_REQUEST).encode())
    assert response.json()["outputs"][0]["data"] == [0, 1, 2]
    readiness = {
        row["modelName"]: row["ready"]
        for row in requests.get(f"{configured_box.url}/models", headers=KEY, timeout=5).json()["models"]
    }
    assert readiness["broken"] is False


def test_tritons_own_grpc_client_works_against_the_open_port(
    configured_box: RunningBox, triton_command: list[str]
) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{option_value(triton_command, 'grpc-port')}") as client:
        assert client.is_server_ready() is False
        tensor = triton.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(X)
        assert client.infer("echo", [tensor]).as_numpy("y").tolist() == X.tolist()
        with pytest.raises(InferenceServerException, match="admin-key"):
            client.get_model_repository_index()
        names = {row.name for row in client.get_model_repository_index(headers=GRPC_KEY).models}
        assert names == {"echo", "broken"}


def test_only_the_ports_that_are_allowed_are_open_and_metrics_answers(
    configured_box: RunningBox, triton_command: list[str]
) -> None:
    pid = configured_box.pid("--model-repository=")
    allowed_ports = {
        int(option_value(triton_command, "grpc-port")),
        int(option_value(triton_command, "metrics-port")),
    }
    addresses = listening_ports(pid)
    assert {port for port, address in addresses.items() if set(address) == {"0"}} == allowed_ports
    assert addresses[21007] == "0100007F"
    metrics = requests.get(
        f"http://127.0.0.1:{option_value(triton_command, 'metrics-port')}/metrics", timeout=5
    )
    assert "nv_inference" in metrics.text


def test_a_caller_that_accepts_anything_gets_the_default_accept(configured_box: RunningBox) -> None:
    request_body = json.dumps({"modelname": "probe", "payload": {"numbers": [1, 2]}}).encode()
    response = configured_box.send(request_body, headers={"Accept": "*/*"})
    assert response.headers["Content-Type"] == "application/x-npy"
    assert np.load(io.BytesIO(response.content), allow_pickle=False).tolist() == [1, 2]
    response = configured_box.send(request_body, headers={"Accept": "application/json"})
    assert response.json()["result"] == [1, 2]


def test_at_log_level_error_an_invocation_is_not_logged(configured_box: RunningBox) -> None:
    configured_box.send(
        json.dumps(V2_REQUEST).encode(), headers={"X-Amzn-SageMaker-Inference-Id": "quiet-one"}
    )
    assert "quiet-one" not in configured_box.log.read_text()


def test_a_time_out_of_an_hour_reaches_nginx(configured_box: RunningBox) -> None:
    nginx_command = next(
        command for command in map(command_line, configured_box.pids("nginx.conf")) if " -c " in command
    ).split()
    assert "proxy_read_timeout 3605s;" in Path(nginx_command[nginx_command.index("-c") + 1]).read_text()


@pytest.fixture(scope="module")
def minimal_box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box that opens no port of Triton, restricts all its APIs, skips a broken client and has no local endpoints."""
    http, grpc, metrics = ports.choose_ports(Settings())
    with boxes.own(
        ("echo", "fixed"),
        ("platform", "locked", {"broken.py": "import no_such_module\n"}),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=(
            f"--http-restricted-api={ALL_APIS}:admin-key=admin-value --grpc-restricted-protocol={ALL_APIS}:key=secret"
        ),
        SAGEMAKER_TRITON_HTTP_PORT=str(http),
        SAGEMAKER_TRITON_GRPC_PORT=str(grpc),
        SAGEMAKER_TRITON_METRICS_PORT=str(metrics),
        MODEL_SERVER_WORKERS="1",
        TRIREME_BROKEN_CLIENTS="skip",
        TRIREME_LOG_FORMAT="text",
        TRIREME_RESTARTS="0",
    ) as started:
        yield started


def test_tritons_ports_are_those_set_and_listen_on_loopback_only(minimal_box: RunningBox) -> None:
    pid = minimal_box.pid("--model-repository=")
    names = ("HTTP", "GRPC", "METRICS")
    ports_set = {int(minimal_box.environment[f"SAGEMAKER_TRITON_{name}_PORT"]) for name in names}
    addresses = listening_ports(pid)
    assert addresses.keys() == ports_set
    assert {address[-8:] for address in addresses.values()} == {"0100007F"}


def test_only_the_public_port_is_reachable_from_outside(minimal_box: RunningBox) -> None:
    pids = (minimal_box.process.pid, *descendants(minimal_box.process.pid))
    open_ports = {
        port for pid in pids for port, address in listening_ports(pid).items() if set(address) == {"0"}
    }
    assert open_ports == {minimal_box.port}


def test_a_broken_client_is_skipped_if_the_setting_says_so(minimal_box: RunningBox) -> None:
    assert minimal_box.invoke("broken", {}).status_code == 404
    assert minimal_box.invoke("probe", {"numbers": [1]}).json()["result"] == [1]


def test_the_log_can_be_plain_text(minimal_box: RunningBox) -> None:
    lines = minimal_box.log.read_text().splitlines()
    assert lines
    assert not any(line.startswith("{") for line in lines)


def test_a_box_with_restricted_apis_is_ready_and_lists_its_models(minimal_box: RunningBox) -> None:
    assert minimal_box.ping()[0] == 200
    rows = requests.get(f"{minimal_box.url}/models", headers=KEY, timeout=5).json()["models"]
    readiness = {row["modelName"]: row["ready"] for row in rows}
    assert (readiness["doubling"], readiness["echo"]) == (True, True)
    assert "nv_inference" in minimal_box.scrape()


def test_callers_of_a_client_need_no_key_and_shared_memory_works(minimal_box: RunningBox) -> None:
    for value in (1.0, 2.0):
        assert minimal_box.invoke("doubling", {"value": value}).json()["result"] == 2 * value
    assert minimal_box.metric("trireme_tensor_requests_total", transport="shared_memory") > 0


def test_callers_of_triton_need_the_key(minimal_box: RunningBox) -> None:
    for path in ("/invocations", "/v2/models/echo/infer"):
        without_key = requests.post(minimal_box.url + path, json=V2_REQUEST, timeout=5)
        assert (without_key.status_code, without_key.json()["code"]) == (403, "forbidden")
        with_key = requests.post(minimal_box.url + path, json=V2_REQUEST, headers=KEY, timeout=5)
        assert with_key.json()["outputs"][0]["data"] == [0, 1, 2]
    for path in ("/v2/health/ready", "/v2", "/v2/models/echo/config", "/v2/models/stats"):
        assert requests.get(minimal_box.url + path, timeout=5).status_code == 403
        assert requests.get(minimal_box.url + path, headers=KEY, timeout=5).status_code == 200


def test_a_model_that_exceeds_the_startup_timeout_stops_the_start(boxes: Boxes) -> None:
    lazy = replace(MODELS["fixed"], head=f"{MODELS['fixed'].head}        time.sleep(60)\n")
    log = boxes.failed_start({"lazy": lazy}, SAGEMAKER_STARTUP_TIMEOUT="8")
    assert "SAGEMAKER_STARTUP_TIMEOUT" in log
    assert "'lazy'" in log


def test_a_short_drain_ends_a_long_request(configured_box: RunningBox) -> None:
    """The last test of this box."""
    with ThreadPoolExecutor(1) as pool:
        # Longer than the test waits for the end of the box.
        long_request = pool.submit(configured_box.invoke, "slow", {"seconds": 500}, timeout=600)
        wait_until(lambda: configured_box.metric("trireme_in_flight"), description="the start of the request")
        assert configured_box.stop() == 0
        assert long_request.exception() or long_request.result().status_code == 503


def test_a_box_without_restarts_ends_when_a_process_dies(minimal_box: RunningBox) -> None:
    """The last test of this box."""
    os.kill(minimal_box.child("triton")["pid"], signal.SIGKILL)
    assert minimal_box.process.wait(WAIT_TIMEOUT_S) != 0
