"""``sm inspect`` shows what a repository contains and finds each problem before a start does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sm.commands.inspect_command import report, table
from sm.repository import problems
from sm.repository.machine import VERSION, Machine
from sm.repository.manifest import NAME
from tests.support.fake_gpu import fake_nvidia_smi, fake_tensorrt_library
from tests.support.onnx_graphs import EMPTY_GRAPH
from tests.support.plans import certain_problems, plan_manifest
from tests.support.sm_command import run_sm
from trireme_extensions.convert.targets import RUNNER
from trireme_tools.build.int8_cost import Quantized

pytestmark = pytest.mark.core

CONFIG = """
name: "tiny"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ 4 ] } ]
dynamic_batching { preferred_batch_size: 4 }
"""
ENVIRONMENT = (
    'parameters { key: "EXECUTION_ENV_PATH" value: {string_value: "$$TRITON_MODEL_DIRECTORY/../other/env"} }'
)


def write_model(repository: Path, extra: str = "", *versions: int, name: str = "tiny") -> Path:
    """Write a model folder without a problem."""
    folder = repository / name
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG.replace('"tiny"', f'"{name}"') + extra)
    for version in versions or (1,):
        (folder / str(version)).mkdir()
        (folder / str(version) / "model.py").write_bytes(b"#" * 500_000)
    return folder


def write_script(repository: Path) -> None:
    """A toolkit script needs no model beside it."""
    (repository / "code").mkdir()
    (repository / "code" / "inference.py").write_text("def model_fn(folder): pass\n")
    (repository / "assets").mkdir()


def write_model_with_environment(repository: Path) -> None:
    write_model(repository, ENVIRONMENT)
    (write_model(repository, name="other") / "env").mkdir()


def write_beside(repository: Path, folder: str) -> None:
    write_model(repository)
    (repository / folder).mkdir()


#: What a repository has, and what its problems name.
CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "good": (write_model, []),
    "good, with clients": (lambda repository: write_beside(repository, "code"), []),
    "a script": (write_script, []),
    "an environment": (write_model_with_environment, []),
    "a version that is not served": (
        lambda repository: (write_model(repository, "", 1, 2) / "1" / "model.py").unlink(),
        [],
    ),
    "a config at the root": (lambda repository: (repository / "config.pbtxt").touch(), ["Model directory needs to contain the top level folder"]),
    "nothing": (lambda repository: None, ["There is no model"]),
    "no version folder": (lambda repository: (write_model(repository) / "1").rename(repository / "tiny" / "one"), ["tiny has no version folder"]),
    "no version of the policy": (
        lambda repository: write_model(repository, "version_policy { specific { versions: [ 1, 3 ] } }", 1, 2),
        ["folder 3"],
    ),
    "another name": (lambda repository: write_model(repository).rename(repository / "other"), ["'tiny'"]),
    "no configuration": (lambda repository: write_beside(repository, "more"), ["more has no config.pbtxt"]),
    "a manifest": (lambda repository: (write_model(repository) / "1" / NAME).write_text("{"), ["manifest.json"]),
    "no environment": (lambda repository: write_model(repository, ENVIRONMENT), ["tiny/../other/env"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_problem_is_found_by_the_command_and_by_a_start(tmp_path: Path, case: str) -> None:
    write, named = CASES[case]
    write(tmp_path)
    found = certain_problems(tmp_path)
    assert len(found) == len(named), found
    assert [name for name, sentence in zip(named, found, strict=True) if name not in sentence] == []
    assert certain_problems(tmp_path / "nowhere") != []


def test_a_version_beyond_the_largest_is_found_by_the_command_and_by_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "MAX_VERSION", 9)
    write_model(tmp_path, "", 1, 9)
    assert certain_problems(tmp_path) == []
    (tmp_path / "tiny" / "1").rename(tmp_path / "tiny" / "10")
    (found,) = certain_problems(tmp_path)
    (problem,) = [each for each in problems.find(tmp_path) if each.is_certain]
    assert problem.sentence == found
    assert "'10'" in found
    # Also where a start goes on without a model that does not load.
    assert problem.hangs


@pytest.mark.parametrize("line", ["max_batch_sise: 8", "}", "input { data_type: TYPE_FP33 }"])
def test_a_config_that_triton_cannot_parse_is_a_problem(tmp_path: Path, line: str) -> None:
    write_model(tmp_path, line)
    (problem,) = certain_problems(tmp_path)
    assert "config.pbtxt" in problem


#: By a line of the configuration: the model's file, and contents that are not a model.
MODEL_FILES: dict[str, tuple[str, tuple[bytes, ...]]] = {
    'backend: "python"': ("model.py", ()),
    'backend: "onnxruntime"': ("model.onnx", (b"", b"version https://git-lfs.github.com/spec/v1\n")),
    'platform: "tensorrt_plan"': ("model.plan", ()),
    'backend: "python" default_model_filename: "mine.py"': ("mine.py", ()),
}


@pytest.mark.parametrize("line", MODEL_FILES)
def test_a_file_of_the_backend_that_is_missing_or_not_there_in_truth_is_a_problem(
    tmp_path: Path, line: str
) -> None:
    file, not_models = MODEL_FILES[line]
    folder = write_model(tmp_path)
    (folder / "config.pbtxt").write_text(CONFIG.replace('backend: "python"', line))
    (folder / "1" / "model.py").rename(folder / "1" / "nothing")
    (sentence,) = certain_problems(tmp_path, Machine(gpu=True))
    assert file in sentence
    for content, count in (*((each, 1) for each in not_models), (EMPTY_GRAPH, 0)):
        (folder / "1" / file).write_bytes(content)
        assert len(certain_problems(tmp_path, Machine(gpu=True))) == count


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


def test_int8_is_shown_with_what_it_cost(tmp_path: Path) -> None:
    quantized = Quantized(
        tool="NNCF 3.4.0",
        measure="accuracy",
        calibrated=100,
        controlled=110,
        held_out=55,
        before=0.8,
        after=0.8,
        held_out_before=0.8,
        held_out_after=0.79,
        max_drop=0.01,
    )
    manifest = plan_manifest(target="cpu", gpu=None, precision="fp32", quantized=quantized.model_dump())
    manifest.write(write_model(tmp_path) / "1")
    ((state,),) = (row["manifest"] for row in report(tmp_path)["models"])
    assert "int8: accuracy 80.0% -> 79.0% of 55 held-out inputs" in state


def test_a_plan_for_another_gpu_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "models")
    (folder / "config.pbtxt").write_text(CONFIG.replace('"python"', '"tensorrt"'))
    (folder / "1" / "model.py").rename(folder / "1" / "model.plan")
    plan_manifest().write(folder / "1")
    fake_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6", monkeypatch)
    fake_tensorrt_library(tmp_path / "lib", "11.0.0", monkeypatch)
    (problem,) = problems.find(tmp_path / "models", Machine())
    assert all(number in problem.sentence for number in ("7.5", "10.1", "8.6", "11.0"))
    assert problem.is_certain


def test_the_exit_status_says_whether_a_start_would_succeed(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    good = run_sm("inspect", tmp_path, "--json")
    assert (good.returncode, json.loads(good.stdout)["problems"]) == (0, [])
    (folder / "1" / "model.py").unlink()
    bad = run_sm("inspect", tmp_path, "--json")
    assert (bad.returncode, len(json.loads(bad.stdout)["problems"])) == (1, 1)


@pytest.mark.parametrize("python", [VERSION, "", "3.9"])
def test_a_model_of_the_cpu_target_on_another_python_is_a_warning(tmp_path: Path, python: str) -> None:
    shutil.copy(RUNNER[0], write_model(tmp_path) / "1" / "model.py")
    found = problems.find(tmp_path, Machine(python=python))
    assert [problem.is_certain for problem in found] == ([False] if python == "3.9" else [])
