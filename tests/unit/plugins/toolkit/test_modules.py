"""Modules beside a script under their plain names, and several folders in one process."""

from __future__ import annotations

import importlib
import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm.plugins.toolkit import script_modules
from sm.plugins.toolkit.script_modules import plain_names


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the process as it was."""
    path, loaded, known = sys.path[:], set(sys.modules), set(script_modules._imported_folders)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        del sys.modules[name]
    script_modules._imported_folders.clear()
    script_modules._imported_folders.update(known)


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


class AnswersEverything(types.ModuleType):
    """As ``torch.classes``: any attribute is there, and none of them can be iterated over."""

    def __getattr__(self, name: str) -> object:
        return AnswersEverything(name)


class RaisesEverywhere(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} before the library is set up")


class ProperPath(types.ModuleType):
    @property
    def __path__(self) -> list[str]:  # type: ignore[override]
        raise OSError("the path is not there yet")


class EndlessPath:
    """No module at all, and a path that never ends."""

    __file__ = 7

    @property
    def __path__(self) -> Iterator[str]:
        return itertools.repeat("x")


class Slotted:
    __slots__ = ()


def with_path(path: object) -> types.ModuleType:
    module = types.ModuleType("odd")
    module.__path__ = path  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    "module",
    [
        AnswersEverything("toolkit_foreign"),
        RaisesEverywhere("toolkit_foreign"),
        ProperPath("toolkit_foreign"),
        EndlessPath(),
        Slotted(),
        None,
        with_path(itertools.repeat("x")),
        with_path(AnswersEverything("x")),
        with_path([None, b"x", 7]),
        with_path("text"),
    ],
    ids=lambda module: type(module).__name__,
)
def test_whatever_lies_in_sys_modules_breaks_no_load(module: Any, tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a", "a"), folder(tmp_path / "b", "b")
    assert words(first) == ["a"] * 3
    sys.modules["toolkit_foreign"] = module
    assert [words(second), words(first)] == [["b"] * 3, ["a"] * 3]
    script_modules.forget_modules(first)
    assert sys.modules["toolkit_foreign"] is module


def test_a_module_that_puts_an_object_in_its_place_is_still_its_folders(tmp_path: Path) -> None:
    replacing = "import sys\n\nclass Word:\n    WORD = {word!r}\n\nsys.modules[__name__] = Word()\n"
    first, second = folder(tmp_path / "a", "a"), folder(tmp_path / "b", "b")
    for home in (first, second):
        (home / "toolkit_helper.py").write_text(replacing.format(word=f"object of {home.name}"))
    assert [words(first)[0], words(second)[0]] == ["object of a", "object of b"]
    script_modules.forget_modules(second)
    assert "toolkit_helper" not in sys.modules


def test_a_folder_inside_a_package_without_an_init_is_read_afresh(tmp_path: Path) -> None:
    home = folder(tmp_path / "a", "a")
    (home / "parts" / "bare").mkdir()
    (home / "parts" / "bare" / "deep.py").write_text("WORD = 'deep'\n")
    (home / "toolkit_script.py").write_text("from parts.bare import deep\nWORDS = [deep.WORD]\n")
    assert words(home) == ["deep"]
    (home / "parts" / "bare" / "deep.py").write_text("WORD = 'deeper'\n")
    assert words(home) == ["deeper"]
