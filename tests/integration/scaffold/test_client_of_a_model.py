"""``sm new-client`` for a model that exists: the client has its tensors, and a golden answer from a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from sm.settings import Settings
from tests.integration.scaffold.linting import assert_clean
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
    assert_clean(tmp_path / "clients", tmp_path / "clients" / name / "client.py")


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


def test_a_model_that_does_not_run_here_is_described_by_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "model" / "plan"
    Model("", {"x": ("INT64", [-1])}, {"y": ("FP16", [3])}, max_batch_size=4).write(folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"tensorrt"'))
    (folder / "1" / "model.plan").write_bytes(b"plan")
    assert run_sm("new-client", "plan", cwd=tmp_path).returncode == 0
    source = (tmp_path / "clients" / "plan" / "client.py").read_text()
    assert '"x": ("INT64", (-1,)),' in source
    assert '"y": ("FP16", (3,)),' in source


def test_a_model_without_a_configuration_is_described_by_its_onnx_file(tmp_path: Path) -> None:
    plus_one(tmp_path / "model" / "plus" / "1" / "model.onnx")
    assert run_sm("new-client", "plus", cwd=tmp_path).returncode == 0
    assert '"x": ("FP32", (4,)),' in (tmp_path / "clients" / "plus" / "client.py").read_text()


def test_a_model_whose_tensors_are_unknown_stops_the_command(tmp_path: Path) -> None:
    version = tmp_path / "model" / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("import no_such_module\n")
    written = run_sm("new-client", "broken", cwd=tmp_path)
    assert (written.returncode, "'broken'" in written.stderr, "Traceback" in written.stderr) == (
        1,
        True,
        False,
    )
    assert not (tmp_path / "clients").exists()
