"""What is decided at start reaches the children, and a repository without models stops it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.repository import models
from sm.run_state import (
    Box,
    check_default_model,
    choose_repository,
    find_repository,
    shared_bytes,
    temporary_folder,
    write_atomically,
)
from sm.settings import Settings


def repository(folder: Path, *names: str, python: bool = False) -> Path:
    for name in names:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n')
        if python:
            (folder / name / "1" / "model.py").touch()
    return folder


def test_a_child_reads_what_the_supervisor_wrote(tmp_path: Path) -> None:
    box = Box("abc", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 1000)
    box.save()
    assert Box.load(tmp_path) == box
    assert box.metrics_folder.is_dir()
    assert (tmp_path / "supervisor.pid").read_text() == str(os.getpid())


def test_everything_of_a_box_is_in_its_run_folder(tmp_path: Path) -> None:
    box = Box("abc", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    places = (
        box.data_socket,
        box.control_socket,
        box.state_file,
        box.clients_file,
        box.metrics_folder,
        box.draining_file,
    )
    assert {place.parent for place in places} == {tmp_path}
    assert len(set(places)) == len(places)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "state.json", "old")
    write_atomically(tmp_path / "state.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert (tmp_path / "state.json").read_text() == "new"


def test_the_repository_that_is_set_wins_over_the_platforms(tmp_path: Path) -> None:
    mine, platform = repository(tmp_path / "mine", "a"), repository(tmp_path / "platform", "b")
    assert find_repository(replace(Settings(), repository=mine), platform) == mine
    assert find_repository(Settings(), platform) == platform
    assert models.names(platform) == ["b"]


def test_the_images_own_models_are_served_where_the_platform_gives_none(tmp_path: Path) -> None:
    baked, platform = repository(tmp_path / "baked", "a"), tmp_path / "platform"
    assert choose_repository(Settings(), platform, baked) == baked
    platform.mkdir()
    (platform / ".keep").touch()
    assert choose_repository(Settings(), platform, baked) == baked
    assert choose_repository(replace(Settings(), repository=platform), platform, baked) == platform
    (platform / "readme.txt").touch()  # something is there: right or wrong, it is what was meant
    assert choose_repository(Settings(), platform, baked) == platform
    assert choose_repository(Settings(), tmp_path / "none", tmp_path / "no image") == tmp_path / "none"


def test_no_model_is_a_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="make serve.*TRIREME_MODEL_REPOSITORY"):
        find_repository(Settings(), tmp_path / "missing")


def test_a_repository_that_does_not_exist_is_said_to_be_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(StartError, match=f"{path} \\(which is no folder\\): .*TRIREME_MODEL_REPOSITORY"):
            find_repository(replace(Settings(), repository=path))


@pytest.mark.parametrize(
    ("folder", "fits"),
    [
        ("/var/tmp/ä", True),
        ("/tmp/my files", False),
        ("/tmp/a;b", False),
        ("/tmp/a{b", False),
        ("/tmp/a$b", False),
        (f"/tmp/{'x' * 90}", False),
    ],
)
def test_a_temporary_folder_that_nginx_or_a_socket_cannot_have_is_replaced(
    folder: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    assert temporary_folder() == Path(folder if fits else "/tmp")


def test_no_temporary_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    with pytest.raises(StartError, match="no temporary folder.*TMPDIR"):
        temporary_folder()


def test_a_config_at_the_root_is_the_contracts_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").touch()
    with pytest.raises(StartError, match="^Model directory needs to contain the top level folder"):
        find_repository(replace(Settings(), repository=tmp_path))


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("", True),
        ("a", True),
        ("mine", True),
        ("renamed", True),
        ("resnet", True),
        ("model", False),
        ("code", False),
        ("nobody", False),
    ],
)
def test_a_default_model_that_is_surely_not_served_is_found_before_loading(
    tmp_path: Path, wanted: str, fits: bool
) -> None:
    mine = repository(tmp_path / "models", "a")
    for name, text in {"mine": "", "other": "name = 'renamed'"}.items():
        (mine / "code" / name).mkdir(parents=True)
        (mine / "code" / name / "client.py").write_text(text)
    settings = replace(Settings(), default_model=wanted)
    if fits:
        check_default_model(settings, mine)
        return
    with pytest.raises(StartError, match=f"DEFAULT_MODEL_NAME='{wanted}' is not served; .*: a, mine, other"):
        check_default_model(settings, mine)


def test_a_script_is_a_default_model(tmp_path: Path) -> None:
    mine = repository(tmp_path / "models", "a")
    (mine / "code").mkdir()
    (mine / "code" / "inference.py").write_text("def model_fn(folder): ...")
    check_default_model(replace(Settings(), default_model="model"), mine)


def test_shared_memory_is_what_is_set_for_all_workers(tmp_path: Path) -> None:
    settings = replace(Settings(), shared_memory_mb=64.0, workers=4)
    assert shared_bytes(settings, tmp_path) == 16 * 2**20


def test_shared_memory_is_a_third_of_what_is_free_beside_tritons(tmp_path: Path) -> None:
    settings = replace(Settings(), workers=2, triton_shm_default=2**20)
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize
    models = repository(tmp_path / "models", "a", "b", python=True)
    assert shared_bytes(settings, models, tmp_path) == pytest.approx((free - 2 * 2**20) / 6, rel=0.05)


@pytest.mark.parametrize("change", [{"shared_memory": False}, {}])
def test_shared_memory_is_nothing_where_it_is_off_or_missing(change: dict[str, bool], tmp_path: Path) -> None:
    assert shared_bytes(replace(Settings(), **change), tmp_path, tmp_path / "missing") == 0  # type: ignore[arg-type]
