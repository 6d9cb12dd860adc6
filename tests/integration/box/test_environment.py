"""Every variable has its effect on the real processes: on their command lines, their ports, their answers."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sm.run_state import Box
from sm.server.supervisor import ports
from sm.settings import Settings
from tests.support.boxes import (
    CLIENT_FOLDERS,
    WAIT_TIMEOUT_S,
    RunningBox,
    command_line,
    descendants,
    log_of_failed_start,
    running_box,
    wait_until,
)
from tests.support.listening import listening
from tests.support.tritons import MODELS

CLIENTS = CLIENT_FOLDERS / "platform"
RESTRICTED = (
    "--http-restricted-api=metadata,model-repository,health:admin-key=admin-value "
    "--grpc-restricted-protocol model-repository,metadata,model-config:admin-key=admin-value "
    "--min-supported-compute-capability '5.2'"
)
KEY = {"admin-key": "admin-value"}
GRPC_KEY = {"triton-grpc-protocol-admin-key": "admin-value"}
X = np.arange(3, dtype=np.float32)[None]
ROWS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 1, 2]}]}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with nearly every variable set, and one model of two that cannot be loaded."""
    folder = tmp_path_factory.mktemp("opened")
    MODELS["echo"].write(folder / "model" / "echo")
    broken = replace(MODELS["fixed"], head="import no_such_module\n" + MODELS["fixed"].head)
    broken.write(folder / "model" / "broken")
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENTS,),
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
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        MODEL_SERVER_WORKERS="2",
        SAGEMAKER_MAX_PAYLOAD_IN_MB="1",
        SAGEMAKER_MAX_REQUEST_SIZE="5000",
        SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="application/x-npy",
        SAGEMAKER_CONTAINER_LOG_LEVEL="40",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="3600",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def line(opened: RunningBox) -> list[str]:
    """Triton's own command line, from the kernel."""
    (pid,) = opened.pids("--model-repository=")
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def option(line: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in line if word.startswith(f"--{name}="))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffer-manager-thread-count", "2"),
        ("http-thread-count", "3"),
        ("log-verbose", "1"),
        ("log-info", "false"),
        ("log-warning", "false"),
        ("log-error", "false"),
        ("http-port", "21007"),
        ("backend-config", "python,shm-region-prefix-name=*"),
    ],
)
def test_a_variable_reaches_tritons_command_line(line: list[str], name: str, value: str) -> None:
    found = option(line, name)
    assert found.startswith(value[:-1]) if value.endswith("*") else found == value


def test_the_python_backends_shared_memory_is_as_set(line: list[str]) -> None:
    assert f"--backend-config=python,shm-default-byte-size={2**21}" in line
    assert f"--backend-config=python,shm-growth-byte-size={2**17}" in line


def test_additional_arguments_come_last_split_as_a_shell_does(line: list[str]) -> None:
    assert line[-3:-1] == ["--min-supported-compute-capability", "5.2"]
    assert "--grpc-restricted-protocol" in line
    assert "model-repository,metadata,model-config:admin-key=admin-value" in line


def test_ping_in_live_mode_is_200_beside_a_model_that_cannot_load(opened: RunningBox) -> None:
    assert opened.ping()[0] == 200
    response = opened.send(json.dumps(ROWS).encode())
    assert response.json()["outputs"][0]["data"] == [0, 1, 2]
    rows = {
        row["modelName"]: row["ready"]
        for row in requests.get(f"{opened.url}/models", headers=KEY, timeout=5).json()["models"]
    }
    assert rows["broken"] is False


def test_a_restricted_api_is_a_403_without_the_header_and_200_with_it(opened: RunningBox) -> None:
    for path in ("/v2/models/echo", "/v2"):
        response = requests.get(opened.url + path, timeout=5)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
        assert requests.get(opened.url + path, headers=KEY, timeout=5).status_code == 200
        assert requests.get(opened.url + path, headers={"admin-key": "x"}, timeout=5).status_code == 403
    index = f"{opened.url}/v2/repository/index"
    assert requests.post(index, timeout=5).status_code == 403
    assert requests.post(index, headers=KEY, timeout=5).status_code == 200


def test_what_is_not_restricted_is_open(opened: RunningBox) -> None:
    infer = f"{opened.url}/v2/models/echo/infer"
    assert requests.post(infer, json=ROWS, timeout=5).status_code == 200
    assert requests.get(f"{opened.url}/v2/models/echo/config", timeout=5).status_code == 200


def test_ports_are_drawn_from_the_safe_range(line: list[str]) -> None:
    for name in ("http-port", "grpc-port", "metrics-port"):
        assert 21000 <= int(option(line, name)) <= 21400


def test_tritons_own_grpc_client_works_against_the_open_port(opened: RunningBox, line: list[str]) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{option(line, 'grpc-port')}") as client:
        assert client.is_server_ready() is False
        given = triton.InferInput("x", [1, 3], "FP32")
        given.set_data_from_numpy(X)
        assert client.infer("echo", [given]).as_numpy("y").tolist() == X.tolist()
        with pytest.raises(InferenceServerException, match="admin-key"):
            client.get_model_repository_index()
        names = {row.name for row in client.get_model_repository_index(headers=GRPC_KEY).models}
        assert names == {"echo", "broken"}


def test_an_open_metrics_port_answers_and_only_open_ports_are_open(
    opened: RunningBox, line: list[str]
) -> None:
    (pid,) = opened.pids("--model-repository=")
    opened_ports = {int(option(line, "grpc-port")), int(option(line, "metrics-port"))}
    found = listening(pid)
    assert {port for port, address in found.items() if set(address) == {"0"}} == opened_ports
    assert found[21007] == "0100007F"
    metrics = requests.get(f"http://127.0.0.1:{option(line, 'metrics-port')}/metrics", timeout=5)
    assert "nv_inference" in metrics.text


def test_the_more_specific_name_wins_and_sets_the_number_of_workers(opened: RunningBox) -> None:
    assert len(opened.workers()) == 1


def test_bytes_win_over_mebibytes_for_the_largest_body(opened: RunningBox) -> None:
    response = opened.send(b" " * 5001)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert "5000 bytes" in response.json()["error"]


def test_the_default_accept_is_what_a_caller_of_anything_gets(opened: RunningBox) -> None:
    asked = json.dumps({"modelname": "probe", "payload": {"numbers": [1, 2]}}).encode()
    response = opened.send(asked, headers={"Accept": "*/*"})
    assert response.headers["Content-Type"] == "application/x-npy"
    assert np.load(io.BytesIO(response.content), allow_pickle=False).tolist() == [1, 2]
    response = opened.send(asked, headers={"Accept": "application/json"})
    assert response.json()["result"] == [1, 2]


def test_at_the_level_of_errors_an_invocation_is_not_logged(opened: RunningBox) -> None:
    opened.send(json.dumps(ROWS).encode(), headers={"X-Amzn-SageMaker-Inference-Id": "quiet-one"})
    assert "quiet-one" not in opened.log.read_text()


def test_an_hours_time_out_reaches_the_front(opened: RunningBox) -> None:
    words = next(line for line in map(command_line, opened.pids("nginx.conf")) if " -c " in line).split()
    assert "proxy_read_timeout 3605s;" in Path(words[words.index("-c") + 1]).read_text()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box whose ports are set and not opened, with a client that is broken, and no endpoints for boto3."""
    folder = tmp_path_factory.mktemp("closed")
    MODELS["fixed"].write(folder / "model" / "fixed")
    (folder / "clients").mkdir()
    (folder / "clients" / "broken.py").write_text("import no_such_module\n")
    http, grpc, metrics = ports.choose_ports(Settings())
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENTS, folder / "clients"),
        SAGEMAKER_TRITON_HTTP_PORT=str(http),
        SAGEMAKER_TRITON_GRPC_PORT=str(grpc),
        SAGEMAKER_TRITON_METRICS_PORT=str(metrics),
        MODEL_SERVER_WORKERS="1",
        TRIREME_BROKEN_CLIENTS="skip",
        TRIREME_LOCAL_ENDPOINTS="false",
        TRIREME_LOG_FORMAT="text",
        TRIREME_WORKER_CLASS="gthread",
    ) as started:
        yield started


def test_every_port_of_triton_is_where_it_is_set_and_on_loopback_alone(closed: RunningBox) -> None:
    (pid,) = closed.pids("--model-repository=")
    names = ("HTTP", "GRPC", "METRICS")
    wanted = {int(closed.environment[f"SAGEMAKER_TRITON_{name}_PORT"]) for name in names}
    found = listening(pid)
    assert found.keys() == wanted
    assert {address[-8:] for address in found.values()} == {"0100007F"}


def test_the_public_port_is_the_only_one_that_is_open(closed: RunningBox) -> None:
    processes = (closed.process.pid, *descendants(closed.process.pid))
    everywhere = {
        port for pid in processes for port, address in listening(pid).items() if set(address) == {"0"}
    }
    assert everywhere == {closed.port}


def test_a_broken_client_is_left_out_where_that_is_asked_for(closed: RunningBox) -> None:
    response = closed.invoke("broken", {})
    assert response.status_code == 404
    assert "no_such_module" in response.json()["error"]
    assert closed.invoke("probe", {"numbers": [1]}).json()["result"] == [1]


def test_the_endpoints_for_boto3_can_be_closed(closed: RunningBox) -> None:
    for path in ("invocations", "invocations-response-stream"):
        response = requests.post(f"{closed.url}/endpoints/any/{path}", json={}, timeout=5)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_gunicorns_own_worker_serves_behind_nginx_where_that_is_set(closed: RunningBox) -> None:
    assert requests.get(f"{closed.url}/nowhere", timeout=10).json()["code"] == "not_found"
    with socket.socket(socket.AF_UNIX) as nginx:
        nginx.settimeout(10)
        nginx.connect(str(Box.load(closed.run_folder()).data_socket))
        nginx.sendall(b"POST /nowhere HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000)
        # gthread hangs up at once, and what this end sees of it, an end or a reset, is the kernel's choice. The
        # worker behind nginx waits for nginx to hang up, so recv would time out; see test_worker_against_gthread.
        with suppress(ConnectionResetError):
            while nginx.recv(4096):
                pass


def test_the_log_is_text_where_that_is_asked_for(closed: RunningBox) -> None:
    lines = closed.log.read_text().splitlines()
    assert lines
    assert not any(line.startswith("{") for line in lines)


def test_a_port_outside_of_the_range_stops_the_start_naming_both(closed: RunningBox, tmp_path: Path) -> None:
    for name in ("HTTP", "GRPC", "METRICS"):
        variable = f"SAGEMAKER_TRITON_{name}_PORT"
        log = refused_like(closed, tmp_path, SAGEMAKER_SAFE_PORT_RANGE="21000-21100", **{variable: "9001"})
        assert f"{variable}=9001 is outside SAGEMAKER_SAFE_PORT_RANGE=21000-21100." in log


def test_a_model_that_loads_longer_than_the_start_may_take_stops_it(tmp_path: Path) -> None:
    slow = MODELS["fixed"].head + "        time.sleep(60)\n"
    replace(MODELS["fixed"], head=slow).write(tmp_path / "model" / "lazy")
    log = log_of_failed_start(tmp_path, tmp_path / "model", clients=(CLIENTS,), SAGEMAKER_STARTUP_TIMEOUT="3")
    assert "was not ready within 3 s (set by SAGEMAKER_STARTUP_TIMEOUT)." in log


def refused_like(box: RunningBox, folder: Path, **variables: str) -> str:
    """The log of a box with the models of another that cannot start."""
    return log_of_failed_start(
        folder, Path(box.environment["TRIREME_MODEL_REPOSITORY"]), clients=(CLIENTS,), **variables
    )


def test_a_default_model_that_is_not_there_stops_the_start(closed: RunningBox, tmp_path: Path) -> None:
    log = refused_like(closed, tmp_path, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="nobody")
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='nobody' is not served; there are: fixed, probe." in log


def test_a_short_drain_cuts_a_long_request_short(closed: RunningBox, tmp_path: Path) -> None:
    repository = Path(closed.environment["TRIREME_MODEL_REPOSITORY"])
    patient: dict[str, Any] = {"TRIREME_DRAIN_SECONDS": "1", "SAGEMAKER_MODEL_SERVER_TIMEOUT": "600"}
    with ThreadPoolExecutor(1) as pool, running_box(tmp_path, repository, **patient) as box:
        # Longer than the test waits for the end of the box.
        late = pool.submit(box.invoke, "slow", {"seconds": 500}, timeout=600)
        wait_until(lambda: box.metric("trireme_in_flight"), description="its beginning")
        assert box.stop() == 0
        assert late.exception() or late.result().status_code == 503


def test_a_box_that_may_restart_nothing_ends_with_what_died(closed: RunningBox, tmp_path: Path) -> None:
    repository = Path(closed.environment["TRIREME_MODEL_REPOSITORY"])
    with running_box(tmp_path, repository, TRIREME_RESTARTS="0") as box:
        os.kill(box.child("triton")["pid"], signal.SIGKILL)
        assert box.process.wait(WAIT_TIMEOUT_S) != 0
