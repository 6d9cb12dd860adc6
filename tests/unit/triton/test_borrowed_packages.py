"""Python models get the box's packages, and theirs come first."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

from sm.triton import borrowed_packages
from sm.triton.borrowed_packages import VARIABLE


def write_package(folder: Path, name: str, version: str) -> None:
    information = folder / f"{name}-{version}.dist-info"
    for path in (folder / name, information):
        path.mkdir(parents=True)
    for file in ("__init__.py", "part.py"):
        (folder / name / file).write_text(f"VERSION = {version!r}\n")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The box's packages, and the folder of a model."""
    box, model = tmp_path / "box", tmp_path / "model"
    model.mkdir()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setenv(VARIABLE, str(box))
    return box, model


def test_a_package_that_only_the_box_has_is_found(folders: tuple[Path, Path]) -> None:
    write_package(folders[0], "engine_of_box", "1.0")
    borrowed_packages.install()
    assert importlib.import_module("engine_of_box").VERSION == "1.0"
    assert importlib.import_module("engine_of_box.part").VERSION == "1.0"
    assert importlib.metadata.version("engine_of_box") == "1.0"


def test_a_models_own_package_is_found_first_though_it_is_added_later(folders: tuple[Path, Path]) -> None:
    write_package(folders[0], "engine_of_both", "1.0")
    write_package(folders[1], "engine_of_both", "2.0")
    (folders[1] / "engine_of_both" / "part.py").unlink()
    borrowed_packages.install()
    # As the python backend does it.
    sys.path.append(str(folders[1]))
    assert importlib.import_module("engine_of_both").VERSION == "2.0"
    assert importlib.metadata.version("engine_of_both") == "2.0"
    # Two versions of a package are never mixed.
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("engine_of_both.part")
