"""``sm inspect`` shows what a repository contains and finds each problem before a start does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.commands.inspect_command import report, table
from sm.repository import problems
from sm.repository.machine import VERSION, Machine
from sm.repository.manifest import NAME
from sm.settings import HERE
from tests.support.empty_graph import EMPTY_GRAPH
from tests.support.fake_gpu import fake_nvidia_smi, fake_tensorrt_library
from tests.support.plans import plan_manifest
from tests.support.sm_command import run_sm

pytestmark = pytest.mark.core

CONFIG = """
name: "tiny"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ 4 ] } ]
dynamic_batching { preferred_batch_size: 4 }
"""


def start_problems(repository: Path, machine: Machine | None = None) -> list[str]:
    """The sentences with which a start ends."""
    return [problem.sentence for problem in problems.find(repository, machine) if problem.is_certain]


def write_model(
    repository: Path, name: str = "tiny", config: str = CONFIG, *versions: int, file: str = "model.py"
) -> Path:
    """Write a model folder without a problem."""
    folder = repository / name
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config.replace('"tiny"', f'"{name}"'))
    for version in versions or (1,):
        (folder / str(version)).mkdir()
        (folder / str(version) / file).write_bytes(b"#" * 500_000)
    return folder


def only_problem(repository: Path) -> str:
    """Check that a repository has exactly one problem, and return it."""
    (problem,) = problems.find_problems(repository)
    return problem


def test_a_good_repository_has_no_problem(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "code").mkdir()  # a folder of clients is not a model
    assert problems.find_problems(tmp_path) == []
    assert start_problems(tmp_path) == []


def test_a_model_is_shown_with_its_tensors_batching_and_manifest(tmp_path: Path) -> None:
    plan_manifest(target="cpu", gpu=None, precision="fp32").write(write_model(tmp_path) / "1")
    (row,) = report(tmp_path)["models"]
    assert row == {
        "model": "tiny",
        "backend": "python",
        "versions": ["1"],
        "inputs": ["x FP32 [-1, 4]"],
        "outputs": ["y INT64 [4]"],
        "batching": "dynamic, up to 8, best 4",
        "mb": 0.5,
        "manifest": ["cpu, TensorRT 10.1, fp32"],
    }
    head, line = table([row])
    assert head.split() == ["model", "backend", "versions", "inputs", "outputs", "batching", "MB", "manifest"]
    assert line.index("python") == head.index("backend")


def test_a_config_at_the_root_is_the_contracts_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").touch()
    assert only_problem(tmp_path).startswith("Model directory needs to contain the top level folder")


def test_a_missing_or_empty_repository_is_a_problem(tmp_path: Path) -> None:
    assert only_problem(tmp_path / "nowhere").endswith("nowhere is not a folder.")
    assert "There is no model" in only_problem(tmp_path)


def test_a_toolkit_script_needs_no_model_beside_it(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text("def model_fn(folder): pass\n")
    (tmp_path / "assets").mkdir()
    assert problems.find_problems(tmp_path) == []


def test_a_missing_version_folder_is_a_problem(tmp_path: Path) -> None:
    (write_model(tmp_path) / "1").rename(tmp_path / "tiny" / "one")
    assert "tiny has no version folder: put the model's file into" in only_problem(tmp_path)
    assert start_problems(tmp_path) == problems.find_problems(tmp_path)


def test_a_missing_version_of_the_version_policy_is_a_problem(tmp_path: Path) -> None:
    write_model(tmp_path, "tiny", CONFIG + "version_policy { specific { versions: [ 1, 3 ] } }", 1, 2)
    assert "has no version folder 3, which its config.pbtxt wants served" in only_problem(tmp_path)


def test_a_name_that_differs_from_the_folders_is_a_problem(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tiny").rename(tmp_path / "other")
    assert "names the model 'tiny'; its folder is 'other'" in only_problem(tmp_path)
    assert start_problems(tmp_path) == problems.find_problems(tmp_path)


@pytest.mark.parametrize("line", ["max_batch_sise: 8", "}", "input { data_type: TYPE_FP33 }"])
def test_a_config_that_triton_cannot_parse_is_a_problem(tmp_path: Path, line: str) -> None:
    write_model(tmp_path, "tiny", CONFIG + line)
    assert "config.pbtxt is not a Triton configuration: " in only_problem(tmp_path)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ('backend: "python"', "model.py"),
        ('backend: "onnxruntime"', "model.onnx"),
        ('platform: "tensorrt_plan"', "model.plan"),
        ('backend: "python" default_model_filename: "mine.py"', "mine.py"),
    ],
)
def test_a_missing_model_file_of_the_backend_is_a_problem(tmp_path: Path, line: str, file: str) -> None:
    folder = write_model(tmp_path, "tiny", CONFIG.replace('backend: "python"', line), file="nothing") / "1"
    (sentence,) = problems.find_problems(tmp_path, Machine(gpu=True))
    assert f"1 has no {file}, which the " in sentence
    (folder / file).write_bytes(EMPTY_GRAPH if file == "model.onnx" else b"#")
    assert problems.find_problems(tmp_path, Machine(gpu=True)) == []


def test_only_versions_that_are_served_need_their_file(tmp_path: Path) -> None:
    (write_model(tmp_path, "tiny", CONFIG, 1, 2) / "1" / "model.py").unlink()
    assert problems.find_problems(tmp_path) == []


def test_a_folder_without_config_and_versions_is_a_problem(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "more").mkdir()
    assert "more has no config.pbtxt, and no version folder that says what it is" in only_problem(tmp_path)


def test_a_missing_step_of_an_ensemble_is_a_problem(tmp_path: Path) -> None:
    steps = "ensemble_scheduling { step { model_name: 'none' } step { model_name: 'tiny' } }"
    write_model(tmp_path)
    write_model(tmp_path, "all", f'name: "all" platform: "ensemble" {steps}')
    sentences = problems.find_problems(tmp_path)
    assert f"{tmp_path}/all/config.pbtxt has a step of the model 'none', which is not there." in sentences
    assert start_problems(tmp_path) == sentences


def test_a_version_at_which_triton_ends_is_a_problem_also_of_a_start_that_needs_no_model(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "tiny", CONFIG, 1, 2**63)
    (problem,) = problems.find(tmp_path)
    assert f"has the version folder '{2**63}'" in problem.sentence
    assert problem.hangs


def test_links_that_dangle_or_leave_the_repository_are_problems(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "repository")
    (tmp_path / "outside").touch()
    (folder / "near").symlink_to("1")
    (folder / "far").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to("nothing")
    dangling, far = problems.find_problems(tmp_path / "repository")
    assert "dangling is a link to nothing, which is not there" in dangling
    assert "outside the repository" in far


def test_a_plan_for_another_gpu_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(
        tmp_path / "models", "resnet", CONFIG.replace('"python"', '"tensorrt"'), file="model.plan"
    )
    plan_manifest().write(folder / "1")
    fake_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6", monkeypatch)
    fake_tensorrt_library(tmp_path / "lib", "11.0.0", monkeypatch)
    (sentence,) = problems.find_problems(tmp_path / "models", Machine())
    assert "compute capability 7.5 with TensorRT 10.1; this box has 8.6 and 11.0" in sentence
    assert start_problems(tmp_path / "models", Machine()) == [sentence]


def test_a_manifest_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (write_model(tmp_path) / "1" / NAME).write_text("{")
    assert "manifest.json cannot be read" in only_problem(tmp_path)


def test_the_exit_status_says_whether_a_start_would_succeed(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    good = run_sm("inspect", tmp_path, "--json")
    assert (good.returncode, json.loads(good.stdout)["problems"]) == (0, [])
    (folder / "1" / "model.py").unlink()
    bad = run_sm("inspect", tmp_path)
    assert bad.returncode == 1
    assert bad.stderr.startswith("problem: ")
    assert bad.stdout.startswith("model ")


@pytest.mark.parametrize("python", [VERSION, "", "3.9"])
def test_a_model_of_the_cpu_target_on_another_python_is_a_warning(tmp_path: Path, python: str) -> None:
    folder = write_model(tmp_path)
    shutil.copy(problems.ONNX_PROGRAM, folder / "1" / "model.py")
    found = problems.find(tmp_path, Machine(python=python))
    assert [problem.is_certain for problem in found] == ([False] if python == "3.9" else [])


def test_a_missing_environment_is_a_problem(tmp_path: Path) -> None:
    value = '{string_value: "$$TRITON_MODEL_DIRECTORY/../other/env"}'
    write_model(tmp_path, "tiny", CONFIG + f'parameters {{key: "EXECUTION_ENV_PATH" value: {value}}}')
    assert f"wants the environment {tmp_path}/tiny/../other/env, which is not there" in only_problem(tmp_path)
    (write_model(tmp_path, "other") / "env").mkdir()
    assert problems.find_problems(tmp_path) == []


def test_inspect_and_start_import_no_graph_library() -> None:
    code = "import sys, sm.server.supervisor.start, sm.commands.inspect_command; print([m for m in ('onnx', 'grpc', 'numpy') if m in sys.modules])"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, check=True
    )
    assert completed.stdout.strip() == "[]"
