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


def test_excluded_caches_are_left_out_and_listed_with_their_size(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "bert")
    caches = ("bert/1/hf_cache", "bert/hf_cache", "hf_cache")
    for cache in caches:
        (folder / cache / "hub").mkdir(parents=True)
        (folder / cache / "hub" / "blob").write_bytes(bytes(200_000))
        (folder / cache / "link").symlink_to("/etc/hostname")  # leads out of the repository
    (folder / "bert" / "1" / "notes.ckpt").write_text("")
    assert run_package("repository", cwd=tmp_path).returncode == 1
    options = ("--exclude", "hf_cache", "--exclude", "*.ckpt", "--exclude", "bert/1/model.p?c")
    output = package_successfully("repository", *options, cwd=tmp_path)
    assert archive_names(tmp_path / "model.tar.gz") == [
        "bert",
        "bert/1",
        "bert/1/model.py",
        "bert/config.pbtxt",
    ]
    assert {f"left out {cache}  0.2 MB" for cache in caches} <= set(output.splitlines())


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
    assert (completed.returncode, named in completed.stderr) == (1, True), completed.stderr
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
    assert (completed.returncode, name in completed.stderr) == (1, True), completed.stderr
