"""The box's state at start: its run folder, repository, temporary folder and shared memory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sm.errors import StartError
from sm.repository import models
from sm.run_state import python_instances, shared_bytes, temporary_folder
from sm.server.startup import choose_repository, find_repository
from sm.settings import Settings


def write_repository(folder: Path, *names: str, python: bool = False) -> Path:
    for name in names:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n')
        if python:
            (folder / name / "1" / "model.py").touch()
    return folder


def test_the_repository_in_the_settings_wins_over_the_platforms(tmp_path: Path) -> None:
    chosen = write_repository(tmp_path / "mine", "a")
    platform_folder = write_repository(tmp_path / "platform", "b")
    assert find_repository(replace(Settings(), repository=chosen), platform_folder) == chosen
    assert find_repository(Settings(), platform_folder) == platform_folder
    assert models.names(platform_folder) == ["b"]


def test_the_models_baked_into_the_image_are_served_if_the_platform_gives_none(tmp_path: Path) -> None:
    baked, platform_folder = write_repository(tmp_path / "baked", "a"), tmp_path / "platform"
    assert choose_repository(Settings(), platform_folder, baked) == baked
    platform_folder.mkdir()
    (platform_folder / ".keep").touch()
    assert choose_repository(Settings(), platform_folder, baked) == baked
    chosen = replace(Settings(), repository=platform_folder)
    assert choose_repository(chosen, platform_folder, baked) == platform_folder
    (platform_folder / "readme.txt").touch()  # the folder is not empty, so it was meant
    assert choose_repository(Settings(), platform_folder, baked) == platform_folder
    assert choose_repository(Settings(), tmp_path / "none", tmp_path / "no image") == tmp_path / "none"


@pytest.mark.parametrize("name", ["", "missing", "file"])
def test_the_error_for_a_missing_repository_says_what_to_do(tmp_path: Path, name: str) -> None:
    """``name``: of the setting; with none the platform gives none."""
    (tmp_path / "file").touch()
    settings = replace(Settings(), repository=tmp_path / name) if name else Settings()
    with pytest.raises(StartError, match=f"{name}.*TRIREME_MODEL_REPOSITORY"):
        find_repository(settings, tmp_path / "none")


@pytest.mark.parametrize(
    "folder", ["/var/tmp/ä", "/tmp/my files", "/tmp/a;b", "/tmp/a{b", "/tmp/a$b", f"/tmp/{'x' * 90}"]
)
def test_a_temporary_folder_that_nginx_cannot_use_is_replaced(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    assert temporary_folder() == Path(folder if folder == "/var/tmp/ä" else "/tmp")


def test_each_instance_of_each_served_version_of_a_python_model_counts(tmp_path: Path) -> None:
    models = write_repository(tmp_path / "models", "one", "many", "versions", "onnx", python=True)
    (models / "onnx" / "1" / "model.py").unlink()
    groups = "instance_group [{ count: 3 }, { kind: KIND_GPU gpus: [0, 1] }]"
    (models / "many" / "config.pbtxt").write_text(groups)
    (models / "versions" / "2").mkdir()
    (models / "versions" / "2" / "model.py").touch()
    (models / "versions" / "config.pbtxt").write_text("version_policy { all {} }")
    assert python_instances(models) == 1 + 5 + 2


def test_a_missing_temporary_folder_is_an_error_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    with pytest.raises(StartError, match="TMPDIR"):
        temporary_folder()


def test_the_workers_divide_the_shared_memory_or_a_third_of_what_is_free(tmp_path: Path) -> None:
    settings = replace(Settings(), workers=4)
    models = write_repository(tmp_path / "models", "a")
    assert shared_bytes(replace(settings, shared_memory_mb=64.0), models) == 16 * 2**20
    assert shared_bytes(settings, models, tmp_path / "missing") == 0
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert shared_bytes(settings, models, tmp_path) == pytest.approx(free / 3 / 4, rel=0.05)
