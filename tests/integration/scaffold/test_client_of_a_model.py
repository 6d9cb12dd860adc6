"""``sm new-client`` for a model that exists: the client has its tensors, and a golden answer from a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from sm.settings import HERE, Settings
from tests.support.check_client import check_client
from tests.support.onnx_graphs import plus_one
from tests.support.sm_command import run_sm
from tests.support.tritons import Model
from trireme_tools.scaffold.real_model import find_repository
from trireme_tools.scaffold.writing import NewClient

#: Each with what its client's payload and golden answer have.
MODELS: dict[str, tuple[Model, list[str], dict[str, list[Any]]]] = {
    "colours": (
        Model(
            'return {"mean": tensor(request, "pixels").mean(axis=(0, 1))}',
            {"pixels": ("FP32", [24, 32, 3])},
            {"mean": ("FP32", [3])},
            max_batch_size=0,
        ),
        ["image"],
        {"mean": [0.486, 0.451, 0.514]},
    ),
    "shout": (
        Model(
            'return {"loud": np.char.upper(np.char.decode(tensor(request, "said").astype(bytes))).astype(object)}',
            {"said": ("STRING", [1])},
            {"loud": ("STRING", [1])},
            max_batch_size=4,
        ),
        ["text"],
        {"loud": ["THREE ROWS OF OARS."]},
    ),
    "prices": (
        # Names that Python and a payload use, a length of at least 8, and a long output.
        Model(
            """
length = tensor(request, "class")
assert length.shape[1] >= 8
total = length.sum(axis=1, keepdims=True) + tensor(request, "input.1")
return {"total": total, "table": np.repeat(total, 20_000, axis=1)}
""",
            {"class": ("FP32", [-1]), "input.1": ("FP32", [1])},
            {"total": ("FP32", [1]), "table": ("FP32", [20_000])},
            max_batch_size=4,
        ),
        ["tensor_class", "input_1"],
        {"total": [9.0], "table": [9.0] * 10},
    ),
}
#: The check that finds what only the author knows: lists that are too short for ``prices``.
AUTHORS = {"prices": {"mutated payloads"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, and a client that the command wrote for each."""
    folder = tmp_path_factory.mktemp("team")
    for name, (model, _, _) in MODELS.items():
        model.write(folder / "model" / name)
        written = run_sm("new-client", name, cwd=folder)
        assert written.returncode == 0, written.stderr
        first, *others, last = written.stdout.splitlines()
        assert (first, last) == (f"wrote clients/{name}", f"next: sm check-client {name}")
        assert [line.split(":")[0] for line in others] == ["fill in preprocess in client.py"] * (
            name in AUTHORS
        )
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_golden_answer_of_a_client_is_its_models(home: Path, name: str) -> None:
    _, fields, answer = MODELS[name]
    sample = home / "clients" / name / "sample"
    assert list(json.loads((sample / "payload.json").read_bytes())) == fields
    golden = json.loads((sample / "golden.json").read_bytes())
    assert list(golden) == list(answer)
    for output, values in answer.items():
        assert golden[output] == (pytest.approx(values, abs=0.01) if output != "loud" else values)


@pytest.mark.parametrize(
    "name",
    [name if name == "prices" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MODELS],
)
def test_the_client_of_a_model_passes_check_client(home: Path, name: str) -> None:
    report = check_client(home, name)
    assert set(report.failed) == AUTHORS.get(name, set()), report.failed


def test_no_identity_model_is_written_for_a_model_that_exists(home: Path) -> None:
    assert sorted(path.name for path in (home / "model").iterdir()) == sorted(MODELS)


@pytest.mark.exhaustive
def test_the_client_of_a_model_passes_ruff_and_mypy(home: Path) -> None:
    config = str(HERE / "pyproject.toml")
    for command in (["ruff", "check", "--config", config], ["ruff", "format", "--check", "--config", config]):
        done = subprocess.run(
            [sys.executable, "-m", *command, home / "clients"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    for name in MODELS:
        file = home / "clients" / name / "client.py"
        done = subprocess.run([sys.executable, "-m", "mypy", file], cwd=HERE, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_model_is_also_found_in_the_repository_that_is_set(home: Path, tmp_path: Path) -> None:
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(home / "model")})
    assert find_repository("shout", tmp_path, settings) == home / "model"
    assert find_repository("other", tmp_path, settings) is None


def test_a_kind_that_the_model_does_not_take_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--kind"):
        NewClient("shout", "audio", home / "model").write(tmp_path)
    assert not (tmp_path / "clients").exists()


def test_a_model_that_does_not_run_here_is_described_by_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "model" / "plan"
    Model("", {"x": ("INT64", [-1])}, {"y": ("FP16", [3])}, max_batch_size=4).write(folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"tensorrt"'))
    (folder / "1" / "model.plan").write_bytes(b"plan")
    written = run_sm("new-client", "plan", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "fill in sample/payload.json and sample/golden.json: Triton cannot load 'plan'" in written.stdout
    source = (tmp_path / "clients" / "plan" / "client.py").read_text()
    assert '"x": ("INT64", (-1,)),' in source
    assert '"y": ("FP16", (3,)),' in source


def test_a_model_without_a_configuration_is_described_by_its_onnx_file(tmp_path: Path) -> None:
    plus_one(tmp_path / "model" / "plus" / "1" / "model.onnx")
    written = run_sm("new-client", "plus", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert '"x": ("FP32", (4,)),' in (tmp_path / "clients" / "plus" / "client.py").read_text()


def test_a_model_whose_tensors_are_unknown_stops_the_command(tmp_path: Path) -> None:
    version = tmp_path / "model" / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("import no_such_module\n")
    written = run_sm("new-client", "broken", cwd=tmp_path)
    assert written.returncode == 1
    assert "Triton cannot load 'broken'" in written.stderr
    assert "Traceback" not in written.stderr
    assert not (tmp_path / "clients").exists()
