"""``sm inspect`` and ``serve`` report the same problem, before Triton is started."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from sm.hardware import has_gpu
from sm.repository import problems
from sm.repository.machine import VERSION, Machine
from tests.support.box_fixture import Boxes
from tests.support.model_archives import multiplying_model
from tests.support.sm_command import run_sm

OTHER_PYTHON = "3.12" if VERSION != "3.12" else "3.11"
ENVIRONMENT = (
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'
)


def add_to_config(folder: Path, text: str) -> None:
    with (folder / "config.pbtxt").open("a") as config:
        config.write(text)


def replace_config(folder: Path, text: str) -> None:
    (folder / "config.pbtxt").write_text(f"{text}\nmax_batch_size: 8\n")


def write_pointer(folder: Path) -> None:
    """A graph of the CPU target that Git LFS has not fetched."""
    (folder / "1" / "model.py").write_bytes(problems.ONNX_PROGRAM.read_bytes())
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
    for name, change in {**CASES, "good": Path.exists}.items():
        multiplying_model().write(repository / name)
        change(repository / name)
    (repository / "notes").mkdir()
    completed = run_sm("inspect", repository)
    assert completed.returncode == 1
    lines = [line.partition("problem: ") for line in completed.stderr.splitlines()]
    sentences = [sentence for _, found, sentence in lines if found]
    wrong = sorted([*CASES, "notes"])
    assert sorted(next(name for name in wrong if f"model/{name}" in text) for text in sentences) == wrong
    log = boxes.failed_start(repository)
    assert [sentence for sentence in sentences if sentence.replace('"', '\\"') not in log] == []
    assert '"process":"triton"' not in log  # it was not started


def test_a_field_that_a_newer_triton_may_know_is_a_warning(tmp_path: Path) -> None:
    multiplying_model().write(tmp_path / "resnet")
    CASES["typo"](tmp_path / "resnet")
    for version, is_certain in (((99, 0), False), ((2, 51), True)):
        (problem,) = problems.find(tmp_path, Machine(triton=version))
        assert problem.is_certain is is_certain
