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
V2_REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 1, 2]}]}


@pytest.fixture(scope="module")
def configured_box(boxes: Boxes) -> Iterator[RunningBox]:
    """A box with nearly every variable set, and one model that cannot be loaded."""
    with boxes.own(
        {"echo": MODELS["echo"], "slow": MODELS["slow"], "broken": BROKEN},
        ("platform", "box", "patient"),
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
        SAGEMAKER_MODEL_SERVER_WORKERS="3",
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


@pytest.fixture(scope="module")
def options(triton_command: list[str]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in triton_command if "=" in word)


def test_a_variable_becomes_an_option_of_triton(triton_command: list[str], options: dict[str, str]) -> None:
    expected = {
        "buffer-manager-thread-count": "2",
        "http-thread-count": "3",
        "log-verbose": "1",
        "log-info": "false",
        "log-warning": "false",
        "log-error": "false",
        "http-port": "21007",
    }
    assert expected.items() <= options.items()
    for option in (f"default-byte-size={2**21}", f"growth-byte-size={2**17}", "region-prefix-name="):
        assert any(word.startswith(f"--backend-config=python,shm-{option}") for word in triton_command)
    # Additional arguments come last, split as a shell does.
    assert triton_command[-3:-1] == ["--min-supported-compute-capability", "5.2"]


def test_ping_in_live_mode_is_200_beside_a_model_that_cannot_load(configured_box: RunningBox) -> None:
    assert configured_box.ping()[0] == 200
    response = configured_box.send(json.dumps(V2_REQUEST).encode())
    assert response.json()["outputs"][0]["data"] == [0, 1, 2]
    rows = requests.get(f"{configured_box.url}/models", headers=KEY, timeout=5).json()["models"]
    assert [row["ready"] for row in rows if row["modelName"] == "broken"] == [False]


@pytest.mark.usefixtures("configured_box")
def test_tritons_own_grpc_client_works_against_the_open_port(options: dict[str, str]) -> None:
    x = np.arange(3, dtype=np.float32)[None]
    with triton.InferenceServerClient(f"127.0.0.1:{options['grpc-port']}") as client:
        assert client.is_server_ready() is False
        tensor = triton.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(x)
        assert client.infer("echo", [tensor]).as_numpy("y").tolist() == x.tolist()
        with pytest.raises(InferenceServerException, match="admin-key"):
            client.get_model_repository_index()
        key = {"triton-grpc-protocol-admin-key": "admin-value"}
        names = {row.name for row in client.get_model_repository_index(headers=key).models}
        assert names == {"echo", "slow", "broken"}


def test_only_the_ports_that_are_allowed_are_open_and_metrics_answers(
    configured_box: RunningBox, options: dict[str, str]
) -> None:
    addresses = listening_ports(configured_box.pid("--model-repository="))
    allowed = {int(options["grpc-port"]), int(options["metrics-port"])}
    assert {port for port, address in addresses.items() if set(address) == {"0"}} == allowed
    assert addresses[21007] == "0100007F"
    assert requests.get(f"http://127.0.0.1:{options['metrics-port']}/metrics", timeout=5).status_code == 200


def test_a_caller_that_accepts_anything_gets_the_default_accept(configured_box: RunningBox) -> None:
    body = json.dumps({"modelname": "probe", "payload": {"numbers": [1, 2]}}).encode()
    response = configured_box.send(body, headers={"Accept": "*/*"})
    assert response.headers["Content-Type"] == "application/x-npy"
    assert np.load(io.BytesIO(response.content), allow_pickle=False).tolist() == [1, 2]
    assert configured_box.send(body, headers={"Accept": "application/json"}).json()["result"] == [1, 2]


def test_at_log_level_error_an_invocation_is_not_logged(configured_box: RunningBox) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "quiet-one"}
    assert configured_box.send(json.dumps(V2_REQUEST).encode(), headers=headers).ok
    assert "quiet-one" not in configured_box.log.read_text()


def test_a_time_out_of_an_hour_reaches_nginx(configured_box: RunningBox) -> None:
    commands = [command_line(pid).split() for pid in configured_box.pids("nginx.conf")]
    (path,) = {command[command.index("-c") + 1] for command in commands if "-c" in command}
    assert "proxy_read_timeout 3605s;" in Path(path).read_text()


@pytest.mark.exhaustive
def test_a_request_may_take_longer_than_a_minute_in_any_part_of_the_box(configured_box: RunningBox) -> None:
    """The default time-outs of gunicorn, nginx and the box are a minute or less."""

    def ask(stage: str) -> int:
        body = {"modelname": "patient", "payload": {"seconds": 63, "how": stage}}
        accept, url = {"Accept": "application/json"}, f"{configured_box.url}/invocations"
        return requests.post(url, json=body, headers=accept, timeout=300).status_code

    workers = configured_box.workers()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, ("locked", "asleep", "triton"))) == [200] * 3
    assert configured_box.workers() == workers


def test_a_short_drain_ends_a_long_request(configured_box: RunningBox) -> None:
    """The last test of this box."""
    with ThreadPoolExecutor(1) as pool:
        # Longer than the test waits for the end of the box.
        long_request = pool.submit(configured_box.invoke, "slow", {"seconds": 500}, timeout=600)
        wait_until(lambda: configured_box.metric("trireme_in_flight"), description="the start of the request")
        assert configured_box.stop() == 0
        assert long_request.exception() or long_request.result().status_code == 503


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
    addresses = listening_ports(minimal_box.pid("--model-repository="))
    variables = [f"SAGEMAKER_TRITON_{name}_PORT" for name in ("HTTP", "GRPC", "METRICS")]
    assert addresses.keys() == {int(minimal_box.environment[name]) for name in variables}
    assert {address[-8:] for address in addresses.values()} == {"0100007F"}
    pids = (minimal_box.process.pid, *descendants(minimal_box.process.pid))
    listening = [listening_ports(pid) for pid in pids]
    opened = {port for ports in listening for port, address in ports.items() if set(address) == {"0"}}
    assert opened == {minimal_box.port}


def test_a_broken_client_is_skipped_if_the_setting_says_so(minimal_box: RunningBox) -> None:
    assert minimal_box.invoke("broken", {}).status_code == 404
    assert minimal_box.invoke("probe", {"numbers": [1]}).json()["result"] == [1]


def test_the_log_can_be_plain_text(minimal_box: RunningBox) -> None:
    lines = minimal_box.log.read_text().splitlines()
    assert lines
    assert not any(line.startswith("{") for line in lines)


def test_callers_of_a_client_need_no_key_and_shared_memory_works(minimal_box: RunningBox) -> None:
    for value in (1.0, 2.0):
        assert minimal_box.invoke("doubling", {"value": value}).json()["result"] == 2 * value
    assert minimal_box.metric("trireme_tensor_requests_total", transport="shared_memory") > 0
    assert minimal_box.metric("nv_inference_request_success", model="fixed") > 0
    assert minimal_box.ping()[0] == 200


def test_callers_of_triton_need_the_key(minimal_box: RunningBox) -> None:
    for path in ("/invocations", "/v2/models/echo/infer"):
        without_key, with_key = (
            requests.post(minimal_box.url + path, json=V2_REQUEST, headers=headers, timeout=5)
            for headers in ({}, KEY)
        )
        assert (without_key.status_code, without_key.json()["code"]) == (403, "forbidden")
        assert with_key.json()["outputs"][0]["data"] == [0, 1, 2]
    for path in ("/models", "/v2/health/ready", "/v2", "/v2/models/echo/config", "/v2/models/stats"):
        assert requests.get(minimal_box.url + path, timeout=5).status_code == 403
        assert requests.get(minimal_box.url + path, headers=KEY, timeout=5).status_code == 200


def test_a_box_without_restarts_ends_when_a_process_dies(minimal_box: RunningBox) -> None:
    """The last test of this box."""
    os.kill(minimal_box.child("triton")["pid"], signal.SIGKILL)
    assert minimal_box.process.wait(WAIT_TIMEOUT_S) != 0
