"""``sm clean``: what the cache holds is shown, and only what is named is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm import cli
from sm.errors import StartError
from sm.tools import clean_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    for part in ("downloads", "models"):
        (root / part).mkdir(parents=True)
        (root / part / "file").write_bytes(b"x" * 1_000_000)
    (root / "lock").write_text("")
    monkeypatch.setenv("TRIREME_CACHE", str(root))
    return root


def clean(*words: str) -> int:
    parser = cli.parser(["clean", *words])
    return clean_cache.run(parser.parse_args(["clean", *words]))


def test_it_shows_each_part_and_removes_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean() == 0
    out = capsys.readouterr().out
    assert "downloads         1.0 MB  packages as fetched" in out
    assert "in all            2.0 MB" in out
    assert (cache / "models" / "file").exists()


def test_a_file_that_two_parts_have_counts_once(cache: Path) -> None:
    (cache / "repository").mkdir()
    (cache / "repository" / "file").hardlink_to(cache / "models" / "file")
    assert clean_cache.total(cache) < 2_100_000
    assert clean_cache.measure(cache)["repository"] >= 1_000_000


def test_the_parts_that_are_named_are_removed_and_the_others_stay(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean("models")
    assert "removed models: 1.0 MB are free again" in capsys.readouterr().out
    assert [path.name for path in sorted(cache.iterdir())] == ["downloads", "lock"]


def test_all_of_it_is_removed_when_asked(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean("--all")
    assert [path.name for path in cache.iterdir()] == ["lock"]
    clean()
    assert f"{cache} is empty" in capsys.readouterr().out


def test_a_part_that_is_not_there_is_named_with_those_that_are(cache: Path) -> None:
    with pytest.raises(StartError, match="has no model; it has downloads, models"):
        clean("model")
