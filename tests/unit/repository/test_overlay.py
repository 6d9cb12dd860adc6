"""What counts as a model of a repository, and what Triton reads in its place."""

from __future__ import annotations

import errno
import os
from codecs import BOM_UTF8
from pathlib import Path
from unittest.mock import Mock

import pytest

from sm.repository import links, models, overlay
from sm.repository.links import link_model
from sm.repository.machine import Machine
from sm.repository.models import Model

#: Folders that file systems, tools and Kubernetes' volumes make beside the models.
LEFT = (
    *("lost+found", ".Trash-1000", "..data", ".ipynb_checkpoints", ".git"),
    *("System Volume Information", "$RECYCLE.BIN", "@eaDir", "__MACOSX", "__pycache__", "code"),
)


@pytest.mark.parametrize("name", LEFT)
def test_what_others_leave_in_a_repository_is_not_a_model(tmp_path: Path, name: str) -> None:
    repository = tmp_path / "models"
    for folder in ("cats", name):
        (repository / folder / "1").mkdir(parents=True)
        (repository / folder / "1" / "model.py").touch()
    assert models.names(repository) == ["cats"]
    assert [model.name for model in models.read(repository)] == ["cats"]
    served = overlay.for_triton(repository, tmp_path / "served", Machine())
    assert [path.name for path in served.iterdir()] == ["cats"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("x = 1")
    return folder


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("group", ["kind: KIND_GPU", "gpus: [ 0 ]"])
def test_a_model_for_a_gpu_runs_on_the_cpu_only_where_there_is_none(
    model: Path, gpu: bool, group: str
) -> None:
    (model / "config.pbtxt").write_text(f'backend: "python" instance_group [{{ {group} }}]')
    served = overlay.for_triton(model.parent, model.parent.with_name("served"), Machine(gpu=gpu))
    assert models.Model.read(served / "m").wants_gpu is gpu
    assert models.Model.read(model).wants_gpu


def test_triton_reads_the_teams_texts_without_a_byte_order_mark(model: Path) -> None:
    (model / "config.pbtxt").write_bytes(BOM_UTF8 + b'backend: "python"')
    (model / "labels.txt").write_bytes(BOM_UTF8 + b"sad\nglad\n")
    (model / "plain.txt").write_bytes(b"sad\n")
    served = overlay.for_triton(model.parent, model.parent.with_name("served"), Machine(gpu=False)) / "m"
    assert models.read_config(model / "config.pbtxt").backend == "python"
    assert (served / "config.pbtxt").read_bytes() == b'backend: "python"'
    assert (served / "labels.txt").read_bytes() == b"sad\nglad\n"
    assert (served / "plain.txt").is_symlink()


LABELS = 'backend: "python" output [{ name: "y" label_filename: "%s" }]'
WARM_UP = """
backend: "python"
model_warmup [{ name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 1 input_data_file: "x.raw" } } }]
"""
FIRST_STATE = """
backend: "python"
sequence_batching { state [{ input_name: "a" output_name: "b" initial_state { name: "i" data_file: "x.raw" } }] }
"""
PARAMETER = 'backend: "python" parameters { key: "A_FILE" value { string_value: "%s" } }'


has_no_hard_links = Mock(side_effect=OSError(errno.EXDEV, os.strerror(errno.EXDEV)))


def filled(model: Path) -> Path:
    target = model.parent.with_name("served")
    link_model(model, target, named_files=Model.read(model).named_files)
    return target


@pytest.mark.parametrize("link", [os.link, has_no_hard_links])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LABELS % "labels.txt", "labels.txt"),
        (LABELS % "./labels.txt", "labels.txt"),
        (LABELS % "texts/of/labels.txt", "texts/of/labels.txt"),
        (LABELS % "linked/labels.txt", "linked/labels.txt"),
        (LABELS % "1/texts/labels.txt", "1/texts/labels.txt"),
        (WARM_UP, "warmup/x.raw"),
        (FIRST_STATE, "initial_state/x.raw"),
        (PARAMETER % "a.bin", "a.bin"),
        (PARAMETER % "$$TRITON_MODEL_DIRECTORY/parts/a.bin", "parts/a.bin"),
    ],
)
def test_a_file_that_the_configuration_names_is_in_the_folder_itself(
    model: Path, config: str, name: str, link: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", link)
    (model.parent / "shared").mkdir()
    (model / "linked").symlink_to("../shared")
    file = model / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("cat")
    (file.parent / "other").write_text("dog")
    (model / "config.pbtxt").write_text(config)
    served = filled(model)
    assert (served / name).resolve().is_relative_to(served.resolve())
    assert (served / name).read_text() == "cat"
    assert (file.parent / "other").samefile((served / name).parent / "other")
    assert (served / "1" / "model.py").resolve() == model / "1" / "model.py"


def test_what_is_too_large_to_copy_may_be_a_link(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", has_no_hard_links)
    monkeypatch.setattr(links, "MAX_COPIED_BYTES", 2)
    (model / "a.bin").write_text("cat")
    (model / "config.pbtxt").write_text(PARAMETER % "a.bin")
    assert (filled(model) / "a.bin").readlink() == model / "a.bin"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "no-such-file", "x" * 5000, "a text with $$ and\\n", "1", "."]
)
def test_a_text_that_is_no_file_of_the_model_changes_nothing(model: Path, name: str) -> None:
    (model.parent / "secret").write_text("secret")
    (model / "config.pbtxt").write_text(PARAMETER % name)
    served = filled(model)
    assert sorted(path.name for path in served.iterdir()) == ["1", "config.pbtxt"]
