"""``sm package`` makes the archives that the notebooks use: without caches, copies numbered from 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.package_repositories import (
    archive_names,
    package_successfully,
    read_config,
    run_package,
    unpack,
    write_chain,
    write_repository,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository whose model has downloaded weights into caches, with links that lead out of it."""
    repository_folder = write_repository(tmp_path / "repository", "bert")
    for cache in ("hf_cache", "bert/hf_cache", "bert/1/hf_cache/hub"):
        (repository_folder / cache).mkdir(parents=True)
        (repository_folder / cache / "blob").write_bytes(bytes(200_000))
        (repository_folder / cache / "link").symlink_to("/etc/hostname")
    return repository_folder


def test_excluded_caches_are_left_out_and_listed_with_their_size(folder: Path, tmp_path: Path) -> None:
    assert run_package("repository", cwd=tmp_path).returncode == 1
    output = package_successfully("repository", "--exclude", "hf_cache", cwd=tmp_path)
    assert archive_names(tmp_path / "model.tar.gz") == [
        "bert",
        "bert/1",
        "bert/1/model.py",
        "bert/config.pbtxt",
    ]
    left_out = [line for line in output.splitlines() if line.startswith("left out")]
    assert left_out == [
        "left out bert/1/hf_cache  0.2 MB",
        "left out bert/hf_cache  0.2 MB",
        "left out hf_cache  0.2 MB",
    ]


def test_several_patterns_and_paths_can_be_excluded(folder: Path, tmp_path: Path) -> None:
    (folder / "bert" / "1" / "notes.ckpt").write_text("")
    options = ("--exclude", "hf_cache", "--exclude", "*.ckpt", "--exclude", "bert/1/model.p?c")
    completed = run_package("repository", "--mme", *options, cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert archive_names(tmp_path / "archives" / "bert.tar.gz")[-1] == "bert/config.pbtxt"
    assert "bert/1/notes.ckpt" not in archive_names(tmp_path / "archives" / "bert.tar.gz")
    assert "bert/1/model.p?c" in completed.stderr


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("*.py", "repository/post/1/model.py"),
        ("1", "repository/post/1"),
        ("config.pbtxt", "repository/"),
        ("pre", "whole "),
        ("/", "--exclude"),
    ],
)
def test_excluding_a_file_that_a_model_needs_is_refused(tmp_path: Path, pattern: str, named: str) -> None:
    write_chain(tmp_path / "repository", "whole", "pre", "post")
    completed = run_package("repository", "--exclude", pattern, cwd=tmp_path)
    assert completed.returncode == 1, completed.stderr
    assert named in completed.stderr
    assert not (tmp_path / "model.tar.gz").exists()


def test_copies_have_the_given_first_number_and_name(tmp_path: Path) -> None:
    write_repository(tmp_path / "repository", "model")
    options = ("--mme", "--copies", 3, "--copies-from", 0, "--copy-name", "{model}_{number}")
    package_successfully("repository", *options, cwd=tmp_path)
    archives = sorted(path.name for path in (tmp_path / "archives").iterdir())
    assert archives == ["model_0.tar.gz", "model_1.tar.gz", "model_2.tar.gz"]
    last = unpack(tmp_path / "archives" / "model_2.tar.gz", tmp_path / "last")
    assert read_config(last / "model_2" / "config.pbtxt").name == "model_2"


@pytest.mark.parametrize("name", ["{model}", "{number}", "{model}/{number}", "{model}-{number}-{x}", "{"])
def test_a_copy_name_that_is_not_unique_to_each_copy_is_refused(tmp_path: Path, name: str) -> None:
    write_repository(tmp_path / "repository", "model")
    completed = run_package("repository", "--mme", "--copies", 2, "--copy-name", name, cwd=tmp_path)
    assert completed.returncode == 1, completed.stderr
    assert name in completed.stderr
