"""An example is assembled from what git has, what its recipe makes and the packages it asks for."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from sm.errors import StartError
from sm.settings import Settings
from sm.tools.build import example_repositories
from sm.tools.build.package_sources import Source
from tests.support.package_registry import StandIn
from tests.support.tiny_recipe import CONFIG, RECIPE

#: The recipe of ``tests/integration/build/conftest.py``, which writes as an example's does.
LAID_OUT = (
    RECIPE
    + """
_flat = build

def build(sources, out):
    (out / "tiny" / "1").mkdir(parents=True)
    _flat(sources, out / "tiny" / "1")
    (out / "tiny" / "1" / "labels.txt").rename(out / "tiny" / "labels.txt")
"""
)
SPEAKS = 'name: "speaks"\nbackend: "python"\n'

Assemble = Callable[[], Path]


@pytest.fixture
def folder(tmp_path: Path, tiny: Source) -> Path:
    """One example: a graph, a Python model with an environment, and a client."""
    example = tmp_path / "examples" / "small"
    files = {
        "recipe/recipe.py": LAID_OUT.format(source=tiny),
        "repository/tiny/config.pbtxt": CONFIG,
        "repository/speaks/config.pbtxt": SPEAKS,
        "repository/speaks/1/model.py": "class TritonPythonModel: ...\n",
        "repository/speaks/requirements.txt": "# the stub's own NumPy is enough\n",
        "repository/code/speaks/client.py": "# a client\n",
    }
    for name, text in files.items():
        (example / name).parent.mkdir(parents=True, exist_ok=True)
        (example / name).write_text(text)
    return example.parent


@pytest.fixture
def assemble(tmp_path: Path, folder: Path, registry: StandIn, monkeypatch: pytest.MonkeyPatch) -> Assemble:
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings.read({"TRIREME_CACHE": str(tmp_path / "cache")})
    return lambda: example_repositories.prepare(settings, "small", folder=folder, stream=io.StringIO())


def test_it_has_gits_files_the_recipes_weights_and_the_environment(assemble: Assemble) -> None:
    made = assemble()
    files = {
        str(path.relative_to(made))
        for path in made.rglob("*")
        if path.is_file() and "env" not in path.relative_to(made).parts
    }
    assert files == {
        ".made-from.json",
        "code/speaks/client.py",
        "speaks/1/model.py",
        "speaks/config.pbtxt",
        "speaks/requirements.txt",
        "tiny/1/manifest.json",
        "tiny/1/model.onnx",
        "tiny/1/model.py",
        "tiny/1/request_token.py",
        "tiny/config.pbtxt",
        "tiny/labels.txt",
    }
    assert (made / "speaks" / "env" / "bin" / "activate").is_file()
    # The graph was given the runner and its target's configuration, the Python model was left as it is.
    assert 'backend: "python"' in (made / "tiny" / "config.pbtxt").read_text()
    assert (made / "speaks" / "config.pbtxt").read_text() == SPEAKS
    onnxruntime.InferenceSession(str(made / "tiny" / "1" / "model.onnx"))
    manifest = json.loads((made / "tiny" / "1" / "manifest.json").read_text())
    assert manifest["source"]["name"].startswith("examples/small/recipe, ")

    # Nothing is made twice; what git changed or somebody lost is made again.
    first = (made / "tiny" / "config.pbtxt").stat().st_ino
    assert (assemble() / "tiny" / "config.pbtxt").stat().st_ino == first
    (made / "tiny" / "labels.txt").unlink()
    assert (assemble() / "tiny" / "labels.txt").is_file()


def test_an_edited_file_is_taken_over(assemble: Assemble, folder: Path) -> None:
    (folder / "small" / "repository" / "speaks" / "requirements.txt").unlink()
    assemble()
    (folder / "small" / "repository" / "code" / "speaks" / "client.py").write_text("# another\n")
    assert (assemble() / "code" / "speaks" / "client.py").read_text() == "# another\n"


def test_an_example_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(StartError, match="there is no example 'large'"):
        example_repositories.prepare(Settings.read({}), "large", folder=folder)
