"""Modules beside a script under their plain names, and several folders in one process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.toolkit import modules
from sm.toolkit.modules import plain_names


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the process as it was."""
    path, loaded, known = sys.path[:], set(sys.modules), set(modules._known)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        del sys.modules[name]
    modules._known.clear()
    modules._known.update(known)


def folder(path: Path, word: str) -> Path:
    """A script with a helper, a package and a module in lib/, all with names of their own kind."""
    (path / "parts").mkdir(parents=True)
    (path / "lib").mkdir()
    (path / "toolkit_script.py").write_text(
        "import toolkit_helper\nfrom parts.inner import INNER\nimport vendored\n"
        "WORDS = [toolkit_helper.WORD, INNER, vendored.WORD]\n"
    )
    (path / "toolkit_helper.py").write_text(f"WORD = {word!r}\n")
    (path / "parts" / "__init__.py").touch()
    (path / "parts" / "inner.py").write_text(f"INNER = {word!r}\n")
    (path / "lib" / "vendored.py").write_text(f"WORD = {word!r}\n")
    return path


def words(path: Path) -> list[str]:
    with plain_names(path):
        found: list[str] = importlib.import_module("toolkit_script").WORDS
        return found


def test_a_helper_a_package_and_lib_are_found_by_their_plain_names(tmp_path: Path) -> None:
    assert words(folder(tmp_path / "a", "a")) == ["a", "a", "a"]


def test_two_folders_with_modules_of_one_name_each_get_their_own(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a", "a"), folder(tmp_path / "b", "b")
    assert [words(first), words(second), words(first)] == [["a"] * 3, ["b"] * 3, ["a"] * 3]


def test_a_folder_that_was_changed_is_read_afresh(tmp_path: Path) -> None:
    home = folder(tmp_path / "a", "a")
    assert words(home) == ["a"] * 3
    (home / "toolkit_helper.py").write_text("WORD = 'another'\n")
    assert words(home) == ["another", "a", "a"]


def test_a_module_imported_later_is_still_found(tmp_path: Path) -> None:
    home = folder(tmp_path / "a", "a")
    (home / "toolkit_lazy.py").write_text("WORD = 'late'\n")
    words(home)
    assert importlib.import_module("toolkit_lazy").WORD == "late"


def test_a_folder_that_is_gone_leaves_no_module_and_no_place(tmp_path: Path) -> None:
    home = folder(tmp_path / "a", "a")
    words(home)
    home.rename(tmp_path / "gone")
    words(folder(tmp_path / "b", "b"))
    assert not [entry for entry in sys.path if entry.startswith(str(home))]
    assert not [
        name for name, found in sys.modules.items() if str(home) in str(getattr(found, "__file__", ""))
    ]
