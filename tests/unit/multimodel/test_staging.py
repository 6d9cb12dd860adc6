"""What Triton is shown of an archive: links, and the names that are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.multimodel.archive_layout import Archive
from sm.multimodel.staging import Staging
from sm.multimodel.staging import is_complete as is_whole
from sm.repository import config_files
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model


def read(url: str | Path) -> Archive:
    return Archive.read(Path(url), Path(url))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    (tmp_path / "repository").mkdir()
    return Staging(tmp_path / "repository", tmp_path / "views")


@pytest.fixture
def whole(tmp_path: Path) -> Archive:
    platform = ArchiveFolder(tmp_path / "models")
    return read(platform.nested("hash", {"a": multiplying_model(), "all": chain_config("a")}))


def test_files_are_links_and_a_renamed_step_is_called_by_its_new_name(
    staging: Staging, whole: Archive, tmp_path: Path
) -> None:
    staging.add(whole, {"a": "a-1", "all": "hash"})
    repository = tmp_path / "repository"
    assert (repository / "a-1" / "1" / "model.py").readlink() == whole.models["a"].folder / "1" / "model.py"
    assert config_files.read(repository / "a-1" / "config.pbtxt").name == "a-1"
    config = config_files.read(repository / "hash" / "config.pbtxt")
    assert (config.name, config.ensemble_scheduling.step[0].model_name) == ("hash", "a-1")
    # Many a way of packing loses an empty folder.
    assert (repository / "hash" / "1").is_dir()


def test_a_configuration_without_a_name_that_changes_stays_to_the_letter(
    staging: Staging, tmp_path: Path
) -> None:
    platform = ArchiveFolder(tmp_path / "models")
    url = Path(platform.flat("hash"))
    text = 'name: "hash" # mine\n' + (url / "config.pbtxt").read_text()
    (url / "config.pbtxt").write_text(text)
    staging.add(read(url), {"model": "hash"})
    assert (tmp_path / "repository" / "hash" / "config.pbtxt").read_text() == text


def test_a_model_without_a_configuration_gets_none(staging: Staging, tmp_path: Path) -> None:
    platform = ArchiveFolder(tmp_path / "models")
    url = Path(platform.flat("hash"))
    (url / "config.pbtxt").unlink()
    staging.add(read(url), {"model": "hash"})
    assert [path.name for path in (tmp_path / "repository" / "hash").iterdir()] == ["1"]


def test_a_client_finds_the_models_under_its_own_names(staging: Staging, tmp_path: Path) -> None:
    platform = ArchiveFolder(tmp_path / "models")
    url = Path(platform.flat("hash"))
    (url / "config.pbtxt").write_text('name: "resnet"\n' + (url / "config.pbtxt").read_text())
    view = staging.create_view(read(url), "id")
    assert sorted(path.name for path in view.iterdir()) == ["model", "resnet"]
    assert (view / "resnet" / "1" / "model.py").is_file()


def test_a_model_whose_files_are_gone_is_not_whole(staging: Staging, whole: Archive, tmp_path: Path) -> None:
    staging.add(whole, {"a": "a", "all": "hash"})
    folder = tmp_path / "repository" / "a"
    staging.touch("a")
    assert is_whole(folder)
    (whole.models["a"].folder / "1" / "model.py").unlink()
    assert not is_whole(folder)
    with pytest.raises(BadInput, match="gone"):
        staging.touch("a")


def test_nothing_is_left_and_the_archive_is_unharmed(
    staging: Staging, whole: Archive, tmp_path: Path
) -> None:
    names = {"a": "a", "all": "hash"}
    staging.add(whole, names)
    staging.create_view(whole, "id")
    staging.remove(names, "id")
    assert list((tmp_path / "repository").iterdir()) == list((tmp_path / "views").iterdir()) == []
    assert (whole.models["a"].folder / "1" / "model.py").is_file()
    staging.remove(names, "id")
