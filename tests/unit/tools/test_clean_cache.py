"""``sm clean`` shows what the cache holds and removes only the named parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm import cli
from sm.errors import CommandError
from trireme_tools import clean_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    for part in ("downloads", "models"):
        (root / part).mkdir(parents=True)
        (root / part / "file").write_bytes(b"x" * 1_000_000)
    (root / "lock").write_text("")
    monkeypatch.setenv("TRIREME_CACHE", str(root))
    return root


def run_clean(*arguments: str) -> int:
    parser = cli.parser(["clean", *arguments])
    return clean_cache.run(parser.parse_args(["clean", *arguments]))


def test_without_a_name_each_part_is_shown_and_nothing_removed(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_clean() == 0
    output = capsys.readouterr().out
    assert "downloads         1.0 MB  packages as fetched" in output
    assert "in all            2.0 MB" in output
    assert (cache / "models" / "file").exists()


def test_named_parts_are_removed_and_others_stay(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_clean("models")
    assert "removed models: 1.0 MB are free again" in capsys.readouterr().out
    assert [path.name for path in sorted(cache.iterdir())] == ["downloads", "lock"]


def test_all_parts_are_removed_with_all(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_clean("--all")
    assert [path.name for path in cache.iterdir()] == ["lock"]
    run_clean()
    assert f"{cache} is empty" in capsys.readouterr().out


def test_the_error_for_an_unknown_part_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(CommandError, match="has no model; it has downloads, models"):
        run_clean("model")
