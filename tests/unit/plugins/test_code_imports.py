"""Code imports the modules beside it by their names; several code folders live in one process."""

from __future__ import annotations

import gc
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm.plugins import code_imports
from sm.plugins.code_imports import plain_names


@pytest.fixture(autouse=True)
def restore_imports(tmp_path: Path) -> Iterator[None]:
    """Undo changes of sys.path, sys.modules and the known folders."""
    path, loaded = sys.path[:], set(sys.modules)
    yield
    for folder in tmp_path.iterdir():
        code_imports.forget_modules(folder)
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def write_script_folder(path: Path, word: str) -> Path:
    """Write a script with a helper module, a package and a module in lib/, whose constants are all ``word``."""
    script = "import toolkit_helper\nfrom parts.inner import INNER\nimport vendored\n"
    files = {"toolkit_script.py": f"{script}WORDS = [toolkit_helper.WORD, INNER, vendored.WORD]\n"}
    files |= {"toolkit_helper.py": f"WORD = {word!r}\n", "lib/vendored.py": f"WORD = {word!r}\n"}
    files |= {"parts/__init__.py": "", "parts/inner.py": f"INNER = {word!r}\n"}
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def import_words(path: Path) -> list[str]:
    """Import the script and return the words of its three modules."""
    with plain_names(path):
        words: list[str] = importlib.import_module("toolkit_script").WORDS
        return words


def test_a_changed_folder_is_imported_again(tmp_path: Path) -> None:
    """Also a package in it without an ``__init__``."""
    script_folder = write_script_folder(tmp_path / "a", "a")
    (script_folder / "parts" / "bare").mkdir()
    bare, helper = script_folder / "parts" / "bare" / "deep.py", script_folder / "toolkit_helper.py"
    bare.write_text("WORD = 'deep'\n")
    with (script_folder / "toolkit_script.py").open("a") as script:
        script.write("from parts.bare import deep\nWORDS += [deep.WORD]\n")
    assert import_words(script_folder) == ["a", "a", "a", "deep"]
    bare.write_text("WORD = 'deeper'\n")
    helper.write_text("WORD = 'another'\n")
    assert import_words(script_folder) == ["another", "a", "a", "deeper"]


class AnswersEverything(types.ModuleType):
    """Has every attribute, but none that can be iterated over, as ``torch.classes``."""

    def __getattr__(self, name: str) -> object:
        return AnswersEverything(name)


@pytest.mark.parametrize("module", [AnswersEverything("toolkit_foreign"), None])
def test_odd_objects_in_sys_modules_do_not_break_a_load(module: Any, tmp_path: Path) -> None:
    first, second = write_script_folder(tmp_path / "a", "a"), write_script_folder(tmp_path / "b", "b")
    assert import_words(first) == ["a"] * 3
    sys.modules["toolkit_foreign"] = module
    assert [import_words(second), import_words(first)] == [["b"] * 3, ["a"] * 3]
    code_imports.forget_modules(first)
    assert sys.modules["toolkit_foreign"] is module


def test_another_import_may_add_a_module_at_any_moment(tmp_path: Path) -> None:
    # More modules than the interpreter keeps freed tuples for: making one may collect garbage.
    added = [f"one_of_many_{number}" for number in range(3000)]
    sys.modules.update({name: types.ModuleType(name) for name in added})

    def add(phase: str, _: object) -> None:
        """Import as another thread does: where the interpreter may change threads, it may collect garbage."""
        if phase == "start":
            added.append(f"one_of_many_{len(added)}")
            sys.modules[added[-1]] = types.ModuleType(added[-1])

    thresholds = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(1)
    try:
        code_imports.forget_modules(tmp_path)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(add)
        for name in added:
            sys.modules.pop(name)
    assert len(added) > 3000
