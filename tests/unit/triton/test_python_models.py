"""Which Python models may answer in a call."""

from __future__ import annotations

from pathlib import Path

from sm.run_state import Box
from sm.triton.python_models import PythonModels
from tests.support.model_archives import multiplying_model


def test_a_model_whose_files_are_being_replaced_is_still_known(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        multiplying_model().write(tmp_path / "repository" / name)
    box = Box("id", tmp_path, tmp_path / "repository", 1, 2, 3, "nginx", 0, has_versions=True)
    script = tmp_path / "repository" / "cats" / "1" / "model.py"
    assert PythonModels(box).reached_by("cats") == ("cats",)
    script.unlink()
    script.symlink_to(tmp_path / "removed.py")
    assert set(PythonModels(box).reached_by("cats")) == {"cats", "dogs"}


def test_what_a_version_calls_is_read_once(tmp_path: Path) -> None:
    multiplying_model().write(tmp_path / "repository" / "cats")
    box = Box("id", tmp_path, tmp_path / "repository", 1, 2, 3, "nginx", 0, has_versions=True)
    models = PythonModels(box)
    assert models.reached_by("cats") == ("cats",)
    box.models_file.write_text("[]")  # another version has come
    (tmp_path / "repository" / "cats" / "1" / "model.py").write_text("InferenceRequest")
    multiplying_model().write(tmp_path / "repository" / "dogs")
    assert models.reached_by("cats") == ("cats",)
