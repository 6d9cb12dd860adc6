"""A toolkit script in a code folder is recognised without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.plugins.sources import discover
from sm.repository.models import CodeFolder
from sm.settings import Settings
from trireme_extensions.toolkit.client_sources import is_script, module_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def model_fn(folder): pass", True),
        ("from handlers import model_fn, predict_fn", True),
        ("from handlers import *", True),
        ("import handlers\nmodel_fn = handlers.load", True),
        ("def load(): pass", True),
        ("def handle(data, context): pass", False),
        ("", True),
        ("class A: pass", False),
        ("from sm.client.base import Client\nclass A(Client): pass\ndef model_fn(folder): pass", False),
        ("from sm.client import base\nclass A(base.TensorClient): pass", False),
        ("def broken(:", True),
    ],
)
def test_a_file_is_a_toolkit_script_unless_it_has_a_client(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "inference.py").write_text(f"raise AssertionError('the script was run')\n{text}\n")
    assert is_script(tmp_path / "inference.py") is expected
    assert [source.kind == "script" for source in discover((tmp_path,))] == [expected]


def test_the_toolkits_environment_variables_name_script_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "serve.py").write_text("def model_fn(folder): pass\n")
    variables = {"SAGEMAKER_PROGRAM": "serve.py", "SAGEMAKER_SUBMIT_DIRECTORY": str(folder)}
    code = CodeFolder.of(Settings.read(variables), tmp_path / "model")
    assert code.file == folder / "serve.py"
    (source,) = discover((code.folder,), code.program)
    assert (source.name, source.file, source.kind, module_of(source)) == (
        "model",
        code.file,
        "script",
        "serve",
    )
