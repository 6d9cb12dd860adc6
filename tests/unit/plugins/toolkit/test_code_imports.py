"""Scripts import the modules beside them and the toolkit's by their names; several code folders live in one process."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sm.plugins import code_imports
from sm.plugins.code_imports import plain_names
from sm.plugins.toolkit.client_sources import STAND_IN


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


def test_every_form_of_import_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    script = ModuleType("script")
    exec(
        "import sagemaker_inference.environment\n"
        "import sagemaker_inference.errors as errors\n"
        "from sagemaker_inference import content_types, logging\n"
        "from sagemaker_inference.encoder import encode\n"
        "class Handler(sagemaker_inference.default_inference_handler.DefaultInferenceHandler): pass\n",
        vars(script),
    )
    assert script.sagemaker_inference.environment.Environment().module_name == "inference"
    assert script.Handler().default_input_fn("[1]", script.content_types.JSON).tolist() == [1]
    assert issubclass(script.errors.UnsupportedFormatError, Exception)


#: Every public name of the toolkit that an inference script can use.
PUBLIC_NAMES = {
    "content_types": "JSON CSV OCTET_STREAM ANY NPY NPZ UTF8_TYPES",
    "decoder": "decode",
    "default_inference_handler": "DefaultInferenceHandler",
    "encoder": "encode SUPPORTED_CONTENT_TYPES",
    "environment": "Environment base_dir code_dir model_dir DEFAULT_MODULE_NAME",
    "errors": "UnsupportedFormatError BaseInferenceToolkitError GenericInferenceToolkitError",
    "logging": "configure_logger get_logger",
    "parameters": (
        "BASE_PATH_ENV USER_PROGRAM_ENV LOG_LEVEL_ENV DEFAULT_INVOCATIONS_ACCEPT_ENV"
        " MODEL_SERVER_WORKERS_ENV MODEL_SERVER_TIMEOUT_ENV BIND_TO_PORT_ENV SAFE_PORT_RANGE_ENV MULTI_MODEL_ENV"
    ),
    "utils": "CONTENT_TYPE_REGEX read_file write_file retrieve_content_type_header parse_accept remove_crlf",
}


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_every_public_name_of_the_toolkit_can_be_imported(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(STAND_IN)
    imported = importlib.import_module(f"sagemaker_inference.{module}")
    assert set(PUBLIC_NAMES[module].split()) <= set(vars(imported))
