from __future__ import annotations

import http.client
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.settings import Settings
from sm.triton import server, wheel
from tests.support.boxes import wait_until
from tests.support.tritons import MODELS, SETTINGS, Model, TritonProcess, prepare_triton


def arguments(serving: TritonProcess, **environment: str) -> tuple[str, ...]:
    return server.command(Settings.read(environment), serving.box, os.environ).arguments


def test_every_port_is_on_loopback_only(triton: TritonProcess) -> None:
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    box = triton.box
    for port in (box.http_port, box.grpc_port, box.metrics_port):
        addresses = [address for address in listening if address.endswith(f":{port:04X}")]
        assert len(addresses) == 1
        assert addresses[0].partition(":")[0].endswith("0100007F")


def test_the_python_backend_uses_the_boxs_prefix(triton: TritonProcess) -> None:
    assert list(Path("/dev/shm").glob(f"trireme-{triton.box.id}-py*"))


def test_settings_reach_the_command_line(triton: TritonProcess) -> None:
    line = arguments(
        triton,
        SAGEMAKER_TRITON_THREAD_COUNT="3",
        SAGEMAKER_TRITON_LOG_VERBOSE="1",
        SAGEMAKER_TRITON_LOG_INFO="false",
        SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE="2097152",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS="--rate-limit off --log-format 'ISO8601'",
    )
    assert {
        "--http-thread-count=3",
        "--log-verbose=1",
        "--log-info=false",
        "--backend-config=python,shm-default-byte-size=2097152",
    } <= set(line)
    assert line[-4:] == ("--rate-limit", "off", "--log-format", "ISO8601")


def test_the_server_of_nvidia_s_image_comes_before_the_wheel_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IMAGE", tmp_path / "tritonserver")
    assert server.find(SETTINGS) == wheel.find_installed()
    (tmp_path / "tritonserver").touch()
    assert server.find(SETTINGS) == tmp_path / "tritonserver"


def test_only_a_server_that_knows_the_option_is_told_that_clients_share_memory(tmp_path: Path) -> None:
    serving = prepare_triton(tmp_path, [])
    for said, told in (("--allow-client-shm <boolean>", True), ("--allow-grpc <boolean>", False)):
        program = tmp_path / f"tritonserver{told}"
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
        line = arguments(serving, TRIREME_TRITON_SERVER=str(program))
        assert ("--allow-client-shm=true" in line) is told
        assert line[0] == str(program)


def test_a_server_that_is_no_program_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="TRIREME_TRITON_SERVER='/nowhere'"):
        server.find(Settings.read({"TRIREME_TRITON_SERVER": "/nowhere"}))


def test_a_missing_libpython_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "LIBPYTHON", "libpython3.99.so.1.0")
    with pytest.raises(StartError, match=r"apt-get install libpython3\.\d+"):
        wheel.libpython()


def test_the_pools_of_many_models_leave_room_in_shared_memory() -> None:
    space = os.statvfs("/dev/shm")
    free = space.f_bavail * space.f_frsize
    assert server._pool(2**24, 1_000_000) == server.MIN_POOL_BYTES
    assert server._pool(2**62, 4) <= free // 2 // 4 + 2**20
    assert server._pool(2**20, 0) == 2**20


def test_a_model_that_cannot_load_is_reported_with_its_reason(tmp_path: Path) -> None:
    serving = prepare_triton(tmp_path, ["echo"])
    broken = replace(MODELS["echo"], head="import no_such_module\n" + MODELS["echo"].head)
    broken.write(serving.box.repository / "broken")
    try:
        serving.launch()
        found = wait_until(lambda: server.failures(serving.box.http_port), description="the failure")
        assert list(found) == ["broken"]
        assert "No module named 'no_such_module'" in found["broken"]
        assert "\n" not in found["broken"]
        assert not server.ready(serving.box.http_port)
    finally:
        serving.stop()


def test_without_triton_nothing_is_ready_and_nothing_has_failed(tmp_path: Path) -> None:
    box = prepare_triton(tmp_path, []).box
    assert not server.ready(box.http_port)
    assert server.failures(box.http_port) == {}


def test_triton_can_be_started_again_from_the_same_run_folder(tmp_path: Path) -> None:
    serving = prepare_triton(tmp_path, [])
    first = server.command(SETTINGS, serving.box, os.environ)
    assert server.command(SETTINGS, serving.box, os.environ) == first


def test_python_models_run_with_the_packages_of_this_interpreter(tmp_path: Path) -> None:
    import onnxruntime

    serving = prepare_triton(tmp_path, [])
    Model(
        "import onnxruntime\nraise ValueError(onnxruntime.__file__)",
        {"x": ("FP32", [1])},
        {"y": ("FP32", [1])},
    ).write(serving.box.repository / "where")
    serving.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", serving.box.http_port, timeout=10)
        body = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}'
        connection.request("POST", "/v2/models/where/infer", body)
        assert onnxruntime.__file__ in connection.getresponse().read().decode().replace("\\/", "/")
        connection.close()
    finally:
        serving.stop()
