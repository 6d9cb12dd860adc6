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
from tests.integration.reference.official_repositories import (
    GPU_LIST,
    KIND_GPU,
    run_inspect,
    write_model,
    write_model_without_config,
)
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.fake_gpu import fake_nvidia_smi
from tests.support.multi_model_endpoint import REQUEST_BODY, MultiModelEndpoint
from tests.support.sm_command import run_sm
from trireme_tools.check.triton_server import served

ASKING_CLIENT = """
from sm.client import Payload, TensorClient


class Asking(TensorClient):
    model, payload = "MODEL", Payload

    def preprocess(self, payload):
        return {}

    def postprocess(self, outputs, payload):
        return []
"""
WITHOUT_GPU = pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")


def write_plan(folder: Path) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.plan").write_bytes(b"plan")
    (folder / "config.pbtxt").write_text('platform: "tensorrt_plan"\nmax_batch_size: 8\n' + KIND_GPU)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "repository"
    write_model(folder / "gpu", KIND_GPU)
    write_model(folder / "listed", GPU_LIST)
    write_model_without_config(folder / "bare")
    write_model_without_config(folder / "inner", in_version=True)
    return folder


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(repository)


def infer(box: RunningBox, name: str) -> Any:
    return requests.post(f"{box.url}/v2/models/{name}/infer", json=REQUEST_BODY, timeout=30).json()


def configuration(box: RunningBox, name: str) -> Any:
    return requests.get(f"{box.url}/v2/models/{name}/config", timeout=30).json()


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["gpu", "listed"])
def test_without_a_gpu_a_model_for_a_gpu_runs_on_the_cpu(
    box: RunningBox, repository: Path, name: str
) -> None:
    config_before = (repository / name / "config.pbtxt").read_text()
    assert infer(box, name)["outputs"][0]["data"] == [1.0, 2.0]
    groups = configuration(box, name)["instance_group"]
    assert [(group["kind"], group["gpus"]) for group in groups] == [("KIND_CPU", [])]
    # The box never writes into the team's folder.
    assert (repository / name / "config.pbtxt").read_text() == config_before
    assert "instance_group" in config_before


@WITHOUT_GPU
def test_one_warning_names_the_models_for_a_gpu(box: RunningBox) -> None:
    warnings = [line for line in box.log.read_text().splitlines() if "KIND_GPU" in line]
    assert len(warnings) == 1
    assert "gpu, listed: " in warnings[0]
    assert '"level":"warning"' in warnings[0].replace(" ", "")


@WITHOUT_GPU
def test_a_plan_without_a_gpu_stops_the_start_with_the_next_step(boxes: Boxes, tmp_path: Path) -> None:
    write_plan(tmp_path / "model" / "resnet")
    output = boxes.failed_start(tmp_path / "model")
    assert "sm build-model resnet --target cpu" in output


def test_standin_with_a_gpu_the_configuration_is_unchanged(
    boxes: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi is a stand-in. Triton gets the configuration unchanged and finds no GPU itself."""
    fake_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6", monkeypatch)
    write_model(tmp_path / "repository" / "resnet", KIND_GPU)
    machine = Machine()
    assert problems.find(tmp_path / "repository", machine) == []
    assert problems.on_cpu(models.read(tmp_path / "repository"), machine) == []
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert "has kind KIND_GPU but" in boxes.failed_start(tmp_path / "repository")  # Triton's words


@WITHOUT_GPU
def test_an_archive_for_a_gpu_is_loaded_on_the_cpu(open_box: MultiModelEndpoint) -> None:
    url = open_box.platform.write_flat("resnet")
    with (Path(url) / "config.pbtxt").open("a") as config:
        config.write(KIND_GPU)
    assert open_box.load("resnet", url).status_code == 200
    assert open_box.invoke("resnet").json()["outputs"][0]["data"] == [1.0, 2.0]
    assert '"level":"warning"' in next(
        line for line in open_box.box.log.read_text().splitlines() if "KIND_GPU" in line
    )
    assert "KIND_GPU" in (Path(url) / "config.pbtxt").read_text()
    open_box.unload("resnet")


@WITHOUT_GPU
def test_an_archive_with_a_plan_and_no_gpu_is_a_400(open_box: MultiModelEndpoint) -> None:
    write_plan(open_box.platform.home / "plan" / "model")
    response = open_box.load("plan", str(open_box.platform.home / "plan" / "model"))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


@pytest.mark.parametrize("name", ["bare", "inner"])
def test_a_model_whose_configuration_triton_completes_is_served(box: RunningBox, name: str) -> None:
    assert infer(box, name)["outputs"][0]["data"] == [1.0, 2.0]
    assert "bare, gpu, inner, listed from" in box.log.read_text()


@pytest.mark.parametrize(("name", "nested"), [("bare", False), ("inner", True)], ids=["flat", "nested"])
def test_an_archive_whose_configuration_triton_completes_is_loaded(
    open_box: MultiModelEndpoint, name: str, nested: bool
) -> None:
    folder = open_box.platform.home / f"{name}{nested}" / "model"
    write_model_without_config(folder / "inside" if nested else folder, in_version=name == "inner")
    assert open_box.load(f"{name}{nested}", str(folder)).status_code == 200
    assert open_box.invoke(f"{name}{nested}").json()["outputs"][0]["data"] == [1.0, 2.0]
    open_box.unload(f"{name}{nested}")


def test_inspect_and_package_accept_what_serve_accepts(repository: Path, tmp_path: Path) -> None:
    code, output = run_inspect(repository)
    assert code == 0, output
    assert f"{repository}/inner/1/config.pbtxt" in output
    completed = run_sm("package", repository, "-o", tmp_path / "model.tar.gz")
    assert completed.returncode == 0, completed.stderr


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["gpu", pytest.param("bare", marks=pytest.mark.exhaustive)])
def test_check_client_accepts_what_serve_accepts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "clients" / "asking").mkdir(parents=True)
    file = tmp_path / "clients" / "asking" / "client.py"
    file.write_text(ASKING_CLIENT.replace("MODEL", name))
    monkeypatch.setenv("TRIREME_MODEL_REPOSITORY", str(repository))
    with served(file) as client:
        assert client.triton.infer(name, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[1.0, 1.0]]


def test_an_onnx_file_without_a_full_configuration_is_a_model(tmp_path: Path) -> None:
    """A gateway's bucket may hold such models. NVIDIA's image has the backend for them, the wheel's Triton not."""
    folder = tmp_path / "densenet_onnx" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(bytes([7 << 3 | 2, 0]))
    (folder / "config.pbtxt").write_text('name: "densenet_onnx"\nplatform: "onnxruntime_onnx"\n')
    assert models.names(tmp_path) == ["densenet_onnx"]
    assert [problem for problem in problems.find_all(tmp_path, Machine()) if problem.is_certain] == []
    assert all(problem.is_local for problem in problems.find_all(tmp_path) if problem.is_certain)
