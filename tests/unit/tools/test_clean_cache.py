"""``sm clean`` shows what the cache holds and removes only the named parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm import cli
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
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["downloads", "1.0", "MB"] in [row[:3] for row in rows]
    assert ["2.0", "MB"] in [row[2:4] for row in rows]
    assert (cache / "models" / "file").exists()


@pytest.mark.parametrize(("part", "left"), [("models", ["downloads", "lock"]), ("--all", ["lock"])])
def test_named_parts_or_all_are_removed_and_others_stay(cache: Path, part: str, left: list[str]) -> None:
    run_clean(part)
    assert [path.name for path in sorted(cache.iterdir())] == left
    assert run_clean() == 0
