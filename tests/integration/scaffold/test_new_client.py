"""A client written by ``sm new-client``, of a kind or for a model that exists, passes every check unchanged."""

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
from tests.support.pages import code_blocks
from tests.support.sm_command import run_sm
from tests.support.tritons import Model
from trireme_tools.scaffold.arguments import KINDS
from trireme_tools.scaffold.real_model import find_repository
from trireme_tools.scaffold.writing import NewClient, class_name


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new client of each kind."""
    folder = tmp_path_factory.mktemp("team")
    for kind in KINDS:
        NewClient(f"my_{kind}", kind).write(folder)
    return folder


def run_module(*command: object) -> str:
    """Run a module in the repository, so that it finds the project's settings, and return its output."""
    words = [sys.executable, "-m", *map(str, command)]
    completed = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


def assert_clean(folder: Path) -> None:
    """Lint and format-check a client's folder, and type-check its files together."""
    for check in (("check",), ("format", "--check")):
        run_module("ruff", *check, "--config", HERE / "pyproject.toml", folder)
    run_module("mypy", *folder.glob("*.py"))


@pytest.mark.parametrize(
    "kind", [kind if kind == "image" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS]
)
def test_a_new_client_passes_check_client_ruff_and_mypy(home: Path, kind: str) -> None:
    report = check_client(home, f"my_{kind}")
    assert report.status == 0, report.failed
    assert_clean(home / "clients" / f"my_{kind}")


def test_a_new_clients_own_tests_pass_and_those_of_all_are_collected_together(home: Path) -> None:
    words = ("pytest", "-q", "-p", "no:cacheprovider", "-k", "my_pipeline", home / "clients")
    assert f"2 passed, {2 * len(KINDS) - 2} deselected" in run_module(*words)


@pytest.mark.exhaustive
def test_new_client_and_check_client_print_what_the_page_shows(tmp_path: Path) -> None:
    expected = code_blocks("start/bring-your-client.md", "text")[0].splitlines()
    written = run_sm("new-client", "street_signs", cwd=tmp_path)
    assert written.stdout.splitlines() == [
        "wrote clients/street_signs",
        "wrote model/street_signs",
        "next: sm check-client street_signs",
    ]
    completed = run_sm("check-client", "street_signs", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[: len(expected)] == expected
    assert completed.stdout.splitlines()[-1] == "street_signs passes"


@pytest.mark.parametrize("name", ["Mine", "my-client", "../mine", "1st", "class", "", "mine", "resnet"])
def test_a_name_that_is_taken_or_that_python_or_triton_cannot_use_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "model" / "mine").mkdir(parents=True)
    with pytest.raises(CommandError):
        NewClient(name, "text").write(tmp_path)
    assert not (tmp_path / "clients").exists()


def test_a_folder_that_cannot_be_written_to_is_a_command_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError):
        NewClient("mine", "text").write(tmp_path / "file")


def test_a_class_is_named_after_its_client() -> None:
    assert class_name("street_signs2") == "StreetSigns2"


#: Each with what its client's payload and golden answer have.
MODELS: dict[str, tuple[Model, list[str], dict[str, list[Any]]]] = {
    "colours": (
        Model(
            'return {"mean": tensor(request, "pixels").mean(axis=(0, 1))}',
            {"pixels": ("FP32", [24, 32, 3])},
            {"mean": ("FP32", [3])},
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
    # Names that Python and a payload use, a length of at least 8, and a long output.
    "prices": (
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


@pytest.mark.parametrize(
    "name",
    [name if name == "prices" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MODELS],
)
def test_a_client_of_a_model_has_its_models_answer_and_passes_check_client(tmp_path: Path, name: str) -> None:
    model, fields, answer = MODELS[name]
    model.write(tmp_path / "model" / name)
    written = run_sm("new-client", name, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert len(written.stdout.splitlines()) == 2 + (name == "prices")
    assert [path.name for path in (tmp_path / "model").iterdir()] == [name]  # and no identity model
    sample = tmp_path / "clients" / name / "sample"
    assert list(json.loads((sample / "payload.json").read_bytes())) == fields
    golden = json.loads((sample / "golden.json").read_bytes())
    assert list(golden) == list(answer)
    for output, values in answer.items():
        assert golden[output] == (pytest.approx(values, abs=0.01) if output != "loud" else values)
    # Only the author knows that lists may be too short for ``prices``.
    assert set(check_client(tmp_path, name).failed) == ({"mutated payloads"} if name == "prices" else set())
    assert_clean(tmp_path / "clients" / name)


def test_the_model_is_also_found_in_the_repository_that_is_set(tmp_path: Path) -> None:
    MODELS["shout"][0].write(tmp_path / "model" / "shout")
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(tmp_path / "model")})
    assert find_repository("shout", tmp_path / "elsewhere", settings) == tmp_path / "model"
    assert find_repository("other", tmp_path / "elsewhere", settings) is None


def test_a_kind_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    MODELS["shout"][0].write(tmp_path / "model" / "shout")
    with pytest.raises(CommandError, match="--kind"):
        NewClient("shout", "audio", tmp_path / "model").write(tmp_path)
    assert not (tmp_path / "clients").exists()


def test_a_model_that_does_not_run_here_is_described_by_its_configuration_or_its_onnx_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model" / "plan"
    Model("", {"x": ("INT64", [-1])}, {"y": ("FP16", [3])}, max_batch_size=4).write(folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"tensorrt"'))
    (folder / "1" / "model.plan").write_bytes(b"plan")
    plus_one(tmp_path / "model" / "plus" / "1" / "model.onnx")
    for name, tensors in (
        ("plan", ('"x": ("INT64", (-1,)),', '"y": ("FP16", (3,)),')),
        ("plus", ('"x": ("FP32", (4,)),',)),
    ):
        assert run_sm("new-client", name, cwd=tmp_path).returncode == 0
        source = (tmp_path / "clients" / name / "client.py").read_text()
        assert [tensor for tensor in tensors if tensor not in source] == []


def test_a_model_whose_tensors_are_unknown_stops_the_command(tmp_path: Path) -> None:
    version = tmp_path / "model" / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("import no_such_module\n")
    written = run_sm("new-client", "broken", cwd=tmp_path)
    assert (written.returncode, "'broken'" in written.stderr) == (1, True)
    assert "Traceback" not in written.stderr
    assert not (tmp_path / "clients").exists()
