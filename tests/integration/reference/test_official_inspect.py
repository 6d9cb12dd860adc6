"""``sm inspect`` and ``serve`` report the same problem, before Triton is started."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from sm.repository import problems
from sm.repository.machine import VERSION, Machine
from tests.integration.reference.official_repositories import run_inspect, write_model
from tests.support.box_fixture import Boxes
from tests.support.empty_graph import EMPTY_GRAPH

OTHER_PYTHON = "3.12" if VERSION != "3.12" else "3.11"
ENVIRONMENT = (
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'
)
ONNX = 'backend: "onnxruntime"\nmax_batch_size: 8\n'


def write_unknown_backend(folder: Path) -> None:
    write_model(folder)
    (folder / "config.pbtxt").write_text('backend: "openvinno"\nmax_batch_size: 8\n')


def write_pointer(folder: Path) -> None:
    """A graph of the CPU target that Git LFS has not fetched."""
    write_model(folder)
    program = problems.ONNX_PROGRAM.read_bytes()
    (folder / "1" / "model.py").write_bytes(program)
    (folder / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")


def write_environment_for_another_python(folder: Path) -> None:
    """An environment as conda-pack makes it, for a Python version without a stub here."""
    write_model(folder, ENVIRONMENT)
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        for name in (
            "bin/activate",
            "lib/python3.1",
            f"lib/libpython{OTHER_PYTHON}.so.1.0",
            f"lib/python{OTHER_PYTHON}/os.py",
        ):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))


def write_without_environment(folder: Path) -> None:
    write_model(folder, ENVIRONMENT)


def write_misspelled_field(folder: Path) -> None:
    write_model(folder, "dynamic_batchin { }\n")


def write_without_script(folder: Path) -> None:
    write_model(folder)
    (folder / "1" / "model.py").unlink()
    (folder / "1" / "weights.bin").touch()


def write_syntax_error(folder: Path) -> None:
    write_model(folder)
    (folder / "1" / "model.py").write_text("import numpy\nclass TritonPythonModel\n    pass\n")


def write_beside_a_folder_without_a_model(folder: Path) -> None:
    """A good model beside a folder that is not a model."""
    write_model(folder)
    (folder.parent / "notes").mkdir()


#: A writer for each kind of problem, by the model's name.
CASES = {
    "backend": write_unknown_backend,
    "graph": write_pointer,
    "python": write_environment_for_another_python,
    "environment": write_without_environment,
    "typo": write_misspelled_field,
    "script": write_without_script,
    "slip": write_syntax_error,
    "nothing": write_beside_a_folder_without_a_model,
}


#: The folders with a problem: that of the last is beside it.
WRONG = sorted({*CASES, "notes"} - {"nothing"})


def test_inspect_and_serve_report_the_same_sentence(boxes: Boxes, tmp_path: Path) -> None:
    repository = tmp_path / "model"
    for name, write_repository in CASES.items():
        write_repository(repository / name)
    code, output = run_inspect(repository)
    sentences = [
        line.removeprefix("problem: ") for line in output.splitlines() if line.startswith("problem: ")
    ]
    assert code == 1
    assert (
        sorted(next(name for name in WRONG if f"model/{name}" in sentence) for sentence in sentences) == WRONG
    )
    output = boxes.failed_start(repository)
    assert [sentence for sentence in sentences if sentence.replace('"', '\\"') not in output] == []
    assert '"process":"triton"' not in output, "Triton was started"


def test_a_field_that_a_newer_triton_may_know_is_a_warning(tmp_path: Path) -> None:
    write_misspelled_field(tmp_path / "resnet")
    (problem,) = problems.find(tmp_path, Machine(triton=(99, 0)))
    assert not problem.is_certain
    (problem,) = problems.find(tmp_path, Machine(triton=(2, 51)))
    assert problem.is_certain


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (EMPTY_GRAPH, None),
        (b"", "model.onnx is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_an_onnx_file_that_is_not_there_in_truth_is_a_problem(
    tmp_path: Path, content: bytes, fault: str | None
) -> None:
    folder = tmp_path / "resnet" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(ONNX)
    (folder / "model.onnx").write_bytes(content)
    sentences = [problem.sentence for problem in problems.find(tmp_path, Machine())]
    assert len(sentences) == bool(fault)
    assert not fault or fault in sentences[0]
