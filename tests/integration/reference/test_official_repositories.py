"""The official container's repositories: made for a GPU, or without ``config.pbtxt``; and faulty, which ``sm inspect`` says."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sm.hardware import has_gpu
from sm.repository import models, problems
from sm.repository.machine import VERSION, Machine
from tests.support.box_fixture import Boxes
from tests.support.model_archives import leave_config_to_triton, multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.sm_command import run_sm
from trireme_extensions.convert.targets import RUNNER
from trireme_tools.check.triton_server import served

KIND_GPU = "instance_group [ { count: 1 kind: KIND_GPU } ]\n"
#: Without a kind a list of GPUs implies KIND_GPU.
GPU_LIST = "instance_group [ { count: 1 gpus: [ 0 ] } ]\n"
CLIENT = """
from sm.client import Payload, TensorClient


class Asking(TensorClient):
    model, payload = "gpu", Payload
    models = ("listed", "bare", "inner")

    def preprocess(self, payload):
        return {}

    def postprocess(self, outputs, payload):
        return []
"""
WITHOUT_GPU = pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")


def add_to_config(folder: Path, text: str) -> None:
    with (folder / "config.pbtxt").open("a") as config:
        config.write(text)


def write_model(folder: Path, extra_config: str = "") -> None:
    multiplying_model().write(folder)
    add_to_config(folder, extra_config)


def write_model_without_config(folder: Path, in_version: bool = False) -> None:
    """Write a model whose configuration Triton completes. ``in_version``: the version folder has one."""
    write_model(folder)
    config = (folder / "config.pbtxt").read_text()
    leave_config_to_triton(folder)
    if in_version:
        (folder / "1" / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "repository"
    write_model(folder / "gpu", KIND_GPU)
    write_model(folder / "listed", GPU_LIST)
    write_model_without_config(folder / "bare")
    write_model_without_config(folder / "inner", in_version=True)
    return folder


@WITHOUT_GPU
def test_an_archive_for_a_gpu_is_loaded_on_the_cpu_and_a_plan_is_a_400(
    multi_model: MultiModelEndpoint,
) -> None:
    home = multi_model.platform.home
    write_model(home / "resnet" / "model", KIND_GPU)
    multi_model.load_successfully("resnet", str(home / "resnet" / "model"))
    assert multi_model.infer_y("resnet") == [1.0, 2.0]
    multi_model.unload("resnet")
    (home / "plan" / "model" / "1").mkdir(parents=True)
    (home / "plan" / "model" / "1" / "model.plan").write_bytes(b"plan")
    (home / "plan" / "model" / "config.pbtxt").write_text(f'platform: "tensorrt_plan"\n{KIND_GPU}')
    response = multi_model.load("plan", str(home / "plan" / "model"))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


@pytest.mark.parametrize(("name", "inside"), [("bare", "."), ("inner", "inside")])
def test_an_archive_whose_configuration_triton_completes_is_loaded(
    multi_model: MultiModelEndpoint, name: str, inside: str
) -> None:
    folder = multi_model.platform.home / name / "model"
    write_model_without_config(folder / inside, in_version=name == "inner")
    multi_model.load_successfully(name, str(folder))
    assert multi_model.infer_y(name) == [1.0, 2.0]
    multi_model.unload(name)


def test_inspect_and_package_accept_what_serve_accepts(repository: Path, tmp_path: Path) -> None:
    for arguments in (("inspect", repository), ("package", repository, "-o", tmp_path / "model.tar.gz")):
        completed = run_sm(*arguments)
        assert completed.returncode == 0, completed.stderr


@WITHOUT_GPU
def test_a_triton_serves_models_for_a_gpu_and_those_that_it_completes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clients" / "asking" / "client.py"
    file.parent.mkdir(parents=True)
    file.write_text(CLIENT)
    monkeypatch.setenv("TRIREME_MODEL_REPOSITORY", str(repository))
    with served(file) as client:
        for name in client.required_models():
            infer = client.triton.infer(name, {"x": np.ones((1, 2), np.float32)})
            assert infer["y"].tolist() == [[1.0, 1.0]]
            config = repository / name / "config.pbtxt"
            # Nothing is written into the team's folder.
            assert not config.exists() or config.read_text().endswith((KIND_GPU, GPU_LIST))


def test_an_onnx_file_without_a_full_configuration_is_a_model(tmp_path: Path) -> None:
    """A gateway's bucket may hold such models. NVIDIA's image has the backend for them, the wheel's Triton not."""
    version = tmp_path / "densenet_onnx" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(bytes([7 << 3 | 2, 0]))
    (version.parent / "config.pbtxt").write_text('name: "densenet_onnx"\nplatform: "onnxruntime_onnx"\n')
    assert models.names(tmp_path) == ["densenet_onnx"]
    assert [problem for problem in problems.find(tmp_path, Machine()) if problem.is_certain] == []
    assert all(problem.is_local for problem in problems.find(tmp_path) if problem.is_certain)


OTHER_PYTHON = "3.12" if VERSION != "3.12" else "3.11"
ENVIRONMENT = (
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'
)


def replace_config(folder: Path, text: str) -> None:
    (folder / "config.pbtxt").write_text(f"{text}\nmax_batch_size: 8\n")


def write_pointer(folder: Path) -> None:
    """A graph of the CPU target that Git LFS has not fetched."""
    (folder / "1" / "model.py").write_bytes(RUNNER[0].read_bytes())
    (folder / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")


def write_environment_for_another_python(folder: Path) -> None:
    """An environment as conda-pack makes it, for a Python version without a stub here."""
    add_to_config(folder, ENVIRONMENT)
    library, module = f"lib/libpython{OTHER_PYTHON}.so.1.0", f"lib/python{OTHER_PYTHON}/os.py"
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        for name in ("bin/activate", "lib/python3.1", library, module):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))


def remove_script(folder: Path) -> None:
    (folder / "1" / "model.py").rename(folder / "1" / "weights.bin")


def write_plan(folder: Path) -> None:
    remove_script(folder)
    (folder / "1" / "model.plan").write_bytes(b"plan")
    replace_config(folder, 'platform: "tensorrt_plan" instance_group [ { count: 1 kind: KIND_GPU } ]')


#: What each kind of problem changes in a good model, by the model's name.
CASES: dict[str, Callable[[Path], object]] = {
    "backend": lambda folder: replace_config(folder, 'backend: "openvinno"'),
    "graph": write_pointer,
    "python": write_environment_for_another_python,
    "environment": lambda folder: add_to_config(folder, ENVIRONMENT),
    "typo": lambda folder: add_to_config(folder, "dynamic_batchin { }\n"),
    "script": remove_script,
    "slip": lambda folder: (folder / "1" / "model.py").write_text("class TritonPythonModel\n    pass\n"),
    **({} if has_gpu() else {"plan": write_plan}),
}


def test_inspect_and_serve_report_the_same_sentence(boxes: Boxes, tmp_path: Path) -> None:
    repository = tmp_path / "model"
    for name, config in (("good", ""), ("gpu", KIND_GPU), ("listed", GPU_LIST)):
        write_model(repository / name, config)
    for name, change in CASES.items():
        write_model(repository / name)
        change(repository / name)
    (repository / "notes").mkdir()
    completed = run_sm("inspect", repository)
    assert completed.returncode == 1
    kinds = [line.partition(": ")[::2] for line in completed.stderr.splitlines()]
    sentences = [sentence for kind, sentence in kinds if kind == "problem"]
    wrong = sorted([*CASES, "notes"])
    assert sorted(next(name for name in wrong if f"model/{name}" in text) for text in sentences) == wrong
    # One warning for all models that are for a GPU.
    warnings = [sentence for kind, sentence in kinds if kind == "warning"]
    assert [text.startswith("gpu, listed: ") for text in warnings] == ([] if has_gpu() else [True])
    log = boxes.failed_start(repository)
    assert [text for text in (*sentences, *warnings) if text.replace('"', '\\"') not in log] == []
    assert '"process":"triton"' not in log  # it was not started


def test_a_field_that_a_newer_triton_may_know_is_a_warning(tmp_path: Path) -> None:
    write_model(tmp_path / "resnet")
    CASES["typo"](tmp_path / "resnet")
    for version, is_certain in (((99, 0), False), ((2, 51), True)):
        (problem,) = problems.find(tmp_path, Machine(triton=version))
        assert problem.is_certain is is_certain
