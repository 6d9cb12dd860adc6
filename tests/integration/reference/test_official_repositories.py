"""The official container's repositories on a real box: made for a GPU, or without ``config.pbtxt``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from sm.hardware import has_gpu
from sm.repository import models, problems
from sm.repository.machine import Machine
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, listening_ports
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY, MultiModelEndpoint
from tests.support.sm_command import run_sm
from trireme_tools.check.triton_server import served

KIND_GPU = "instance_group [ { count: 1 kind: KIND_GPU } ]\n"
#: Without a kind a list of GPUs implies KIND_GPU.
GPU_LIST = "instance_group [ { count: 1 gpus: [ 0 ] } ]\n"
#: In a Python model: declares its inputs and outputs, so that Triton completes its configuration.
AUTO_COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        return config

    def initialize"""
CLIENT = """
from sm.client import Payload, TensorClient


class Asking(TensorClient):
    model, payload = "MODEL", Payload

    def preprocess(self, payload):
        return {}

    def postprocess(self, outputs, payload):
        return []
"""
WITHOUT_GPU = pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")


def write_model(folder: Path, extra_config: str = "") -> None:
    multiplying_model().write(folder)
    with (folder / "config.pbtxt").open("a") as config:
        config.write(extra_config)


def write_model_without_config(folder: Path, in_version: bool = False) -> None:
    """Write a model whose configuration Triton completes. ``in_version``: the version folder has one."""
    write_model(folder)
    config, script = folder / "config.pbtxt", folder / "1" / "model.py"
    config.rename(folder / "1" / "config.pbtxt") if in_version else config.unlink()
    script.write_text(script.read_text().replace("\n    def initialize", AUTO_COMPLETE, 1))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "repository"
    write_model(folder / "gpu", KIND_GPU)
    write_model(folder / "listed", GPU_LIST)
    write_model_without_config(folder / "bare")
    write_model_without_config(folder / "inner", in_version=True)
    return folder


@pytest.fixture(scope="module")
def ports() -> dict[str, str]:
    """Settings of Triton's own ports."""
    return {f"SAGEMAKER_TRITON_{name}_PORT": str(free_port()) for name in ("HTTP", "GRPC", "METRICS")}


@pytest.fixture
def box(boxes: Boxes, repository: Path, ports: dict[str, Any]) -> RunningBox:
    return boxes(repository, TRIREME_TRITON_PORTS="all-with-known-holes", **ports)


def test_the_setting_all_opens_the_ports_on_every_address(box: RunningBox, ports: dict[str, str]) -> None:
    found = listening_ports(box.pid("--model-repository="))
    assert {port: address[-8:] for port, address in found.items()} == dict.fromkeys(
        map(int, ports.values()), "00000000"
    )


def infer(box: RunningBox, name: str) -> Any:
    answer = requests.post(f"{box.url}/v2/models/{name}/infer", json=REQUEST_BODY, timeout=30).json()
    return answer["outputs"][0]["data"]


@WITHOUT_GPU
def test_without_a_gpu_a_model_for_a_gpu_runs_on_the_cpu_with_one_warning(
    box: RunningBox, repository: Path
) -> None:
    for name, config in (("gpu", KIND_GPU), ("listed", GPU_LIST)):
        assert infer(box, name) == [1.0, 2.0]
        (group,) = requests.get(f"{box.url}/v2/models/{name}/config", timeout=30).json()["instance_group"]
        assert (group["kind"], group["gpus"]) == ("KIND_CPU", [])
        # The box never writes into the team's folder.
        assert (repository / name / "config.pbtxt").read_text().endswith(config)
    (warning,) = (line for line in box.log.read_text().splitlines() if "KIND_GPU" in line)
    assert "gpu, listed: " in warning


@WITHOUT_GPU
def test_an_archive_for_a_gpu_is_loaded_on_the_cpu_and_a_plan_is_a_400(open_box: MultiModelEndpoint) -> None:
    home = open_box.platform.home
    write_model(home / "resnet" / "model", KIND_GPU)
    open_box.load_successfully("resnet", str(home / "resnet" / "model"))
    assert open_box.infer_y("resnet") == [1.0, 2.0]
    open_box.unload("resnet")
    (home / "plan" / "model" / "1").mkdir(parents=True)
    (home / "plan" / "model" / "1" / "model.plan").write_bytes(b"plan")
    (home / "plan" / "model" / "config.pbtxt").write_text(f'platform: "tensorrt_plan"\n{KIND_GPU}')
    response = open_box.load("plan", str(home / "plan" / "model"))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


def test_a_model_whose_configuration_triton_completes_is_served(box: RunningBox) -> None:
    assert [infer(box, name) for name in ("bare", "inner")] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize(("name", "inside"), [("bare", "."), ("inner", "inside")], ids=["flat", "nested"])
def test_an_archive_whose_configuration_triton_completes_is_loaded(
    open_box: MultiModelEndpoint, name: str, inside: str
) -> None:
    folder = open_box.platform.home / name / "model"
    write_model_without_config(folder / inside, in_version=name == "inner")
    open_box.load_successfully(name, str(folder))
    assert open_box.infer_y(name) == [1.0, 2.0]
    open_box.unload(name)


def test_inspect_and_package_accept_what_serve_accepts(repository: Path, tmp_path: Path) -> None:
    for arguments in (("inspect", repository), ("package", repository, "-o", tmp_path / "model.tar.gz")):
        completed = run_sm(*arguments)
        assert completed.returncode == 0, completed.stderr


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["gpu", pytest.param("bare", marks=pytest.mark.exhaustive)])
def test_check_client_accepts_what_serve_accepts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / "clients" / "asking" / "client.py"
    file.parent.mkdir(parents=True)
    file.write_text(CLIENT.replace("MODEL", name))
    monkeypatch.setenv("TRIREME_MODEL_REPOSITORY", str(repository))
    with served(file) as client:
        assert client.triton.infer(name, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[1.0, 1.0]]


def test_an_onnx_file_without_a_full_configuration_is_a_model(tmp_path: Path) -> None:
    """A gateway's bucket may hold such models. NVIDIA's image has the backend for them, the wheel's Triton not."""
    version = tmp_path / "densenet_onnx" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(bytes([7 << 3 | 2, 0]))
    (version.parent / "config.pbtxt").write_text('name: "densenet_onnx"\nplatform: "onnxruntime_onnx"\n')
    assert models.names(tmp_path) == ["densenet_onnx"]
    assert [problem for problem in problems.find_all(tmp_path, Machine()) if problem.is_certain] == []
    assert all(problem.is_local for problem in problems.find_all(tmp_path) if problem.is_certain)
