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


@pytest.mark.parametrize(
    ("parts", "left"),
    [([], ["downloads", "lock", "models"]), (["models"], ["downloads", "lock"]), (["--all"], ["lock"])],
)
def test_named_parts_or_all_are_removed_and_others_stay(
    cache: Path, capsys: pytest.CaptureFixture[str], parts: list[str], left: list[str]
) -> None:
    assert run_clean(*parts) == 0
    assert [path.name for path in sorted(cache.iterdir())] == left
    assert parts or ["downloads", "1.0", "MB"] in [
        line.split()[:3] for line in capsys.readouterr().out.splitlines()
    ]
