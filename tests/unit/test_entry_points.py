"""A door has the rows of every installed distribution, in one order, and a broken one is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm import entry_points
from sm.errors import StartError


@pytest.fixture(autouse=True)
def _read_again() -> Iterator[None]:
    def forget() -> None:
        entry_points._every.cache_clear()
        entry_points.load.cache_clear()

    forget()
    yield
    forget()


def install(folder: Path, name: str, code: str, rows: str) -> None:
    """Put a distribution with one module of the same name into a folder, as pip does."""
    (folder / f"{name}.py").write_text(code)
    metadata = folder / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[sm.played_door]\n{rows}\n")


def test_the_rows_of_all_distributions_come_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path, "played_zebra", "FIRST, LAST = 'a', 'd'", "a = played_zebra:FIRST\nd = played_zebra:LAST"
    )
    install(tmp_path, "played_ape", "MIDDLE, SAME = 'b', 'c'", "c = played_ape:SAME\nb = played_ape:MIDDLE")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert entry_points.load("sm.played_door") == ("a", "b", "c", "d")
    assert entry_points.load("sm.no_such_door") == ()


@pytest.mark.parametrize(
    "code",
    ["import no_such_library", "not Python", "raise SystemExit(0)", "1 / 0", "ANOTHER = 1"],
    ids=["missing library", "syntax", "exit", "fault", "no such name"],
)
def test_an_extension_that_cannot_be_imported_is_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "played_broken", code, "row = played_broken:ROW")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartError, match=r"played_broken 1\.2.*pip uninstall played_broken"):
        entry_points.load("sm.played_door")
