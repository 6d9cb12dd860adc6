"""A Python model's names have only characters that every Triton takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.models.archive_layout import Archive
from sm.repository import problems
from sm.repository.problems import Problem

#: Each with one character that not every Triton takes in a Python model's name.
UNUSABLE = [f"a{character}b" for character in ";|&$`<>()[]{}\\\"'*?~#! \t\n\r\x01\x7f"]
#: Every Triton loads these.
USABLE = [f"a{character}b" for character in ".-_@+=%,:^"] + ["plain", "-a", "modèle", "模型"]
CONFIG = 'backend: "python"\nmax_batch_size: 0\n'


def write_model(folder: Path, config: str = CONFIG) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text("pass\n")
    return folder


def certain(repository: Path) -> list[Problem]:
    return [problem for problem in problems.find(repository) if problem.is_certain]


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("has_config", [True, False])
def test_a_python_model_with_an_unusable_name_is_refused(tmp_path: Path, name: str, has_config: bool) -> None:
    folder = write_model(tmp_path / name)
    if not has_config:
        (folder / "config.pbtxt").unlink()
    (problem,) = certain(tmp_path)
    # Also where a start goes on without a model that does not load.
    assert problem.hangs
    with pytest.raises(BadInput):
        Archive.read(tmp_path, tmp_path)


@pytest.mark.parametrize("name", USABLE)
def test_a_name_that_every_triton_takes_is_used(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / name)
    assert certain(tmp_path) == []
    assert Archive.read(tmp_path, tmp_path).entry == name


@pytest.mark.parametrize(
    "line",
    [
        'instance_group [{name: "NAME", count: 1, kind: KIND_CPU}]',
        'default_model_filename: "NAME"',
        'parameters {key: "EXECUTION_ENV_PATH", value: {string_value: "NAME"}}',
        'parameters {key: "EXECUTION_ENV_PATH", value: {string_value: "/NAME"}}',
        'parameters {key: "EXECUTION_ENV_PATH", value: {string_value: "$$TRITON_MODEL_DIRECTORY/NAME"}}',
        # A link to the folder of that name.
        'parameters {key: "EXECUTION_ENV_PATH", value: {string_value: "$$TRITON_MODEL_DIRECTORY/link"}}',
    ],
)
@pytest.mark.parametrize(
    "backend", ['backend: "python"', 'backend: "ours"', 'backend: "x", runtime: "model.py"']
)
def test_what_a_configuration_adds_to_the_command_is_refused(tmp_path: Path, line: str, backend: str) -> None:
    name = "a;b"
    folder = write_model(tmp_path / "a", f"{backend}\n{line.replace('NAME', name)}\n")
    (folder / name / "bin").mkdir(parents=True)
    (folder / "link").symlink_to(name)
    assert any(name in problem.sentence and problem.hangs for problem in certain(tmp_path))
    for archive in (tmp_path, folder):
        with pytest.raises(BadInput):
            Archive.read(archive, archive)


@pytest.mark.parametrize("character", "?# \t\n\x7f")
def test_no_model_has_a_name_that_ends_a_path_of_http(tmp_path: Path, character: str) -> None:
    """Triton's HTTP decodes no name, so ``%3F`` is not a question mark to it."""
    folder = tmp_path / f"a{character}b"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('platform: "ensemble"\n')
    assert certain(tmp_path)
