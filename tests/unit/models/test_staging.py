"""Staging links an archive's files into Triton's repository, under the names that Triton uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.models.archive_layout import Archive
from sm.models.staging import Staging, is_complete
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model


def read_archive(url: str | Path) -> Archive:
    return Archive.read(Path(url), Path(url))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    (tmp_path / "repository").mkdir()
    return Staging(tmp_path / "repository", tmp_path / "views")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    platform = ArchiveFolder(tmp_path / "models")
    return read_archive(platform.write_nested("hash", {"a": multiplying_model(), "all": chain_config("a")}))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return Path(ArchiveFolder(tmp_path / "models").write_flat("flat"))


def test_a_client_finds_its_models_by_folder_name_and_by_configured_name(
    staging: Staging, flat: Path
) -> None:
    (flat / "config.pbtxt").write_text('name: "resnet"\n' + (flat / "config.pbtxt").read_text())
    view = staging.create_view(read_archive(flat), "id")
    assert sorted(path.name for path in view.iterdir()) == ["model", "resnet"]
    assert (view / "resnet" / "1" / "model.py").is_file()


def test_a_model_whose_files_are_gone_is_not_complete(
    staging: Staging, archive: Archive, tmp_path: Path
) -> None:
    staging.add(archive, {"a": "a", "all": "hash"})
    folder = tmp_path / "repository" / "a"
    staging.touch("a")
    assert is_complete(folder)
    (archive.models["a"].folder / "1" / "model.py").unlink()
    assert not is_complete(folder)
    with pytest.raises(BadInput):
        staging.touch("a")
