"""``sm prepare --examples`` assembles an example from git's files, its recipe and its packages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from sm.errors import CommandError
from sm.settings import Settings
from tests.integration.build.package_registry import FakeRegistry
from tests.integration.build.tiny_recipe import CONFIG, RECIPE
from trireme_tools.prepare import example_repositories
from trireme_tools.prepare.packages import Source

#: The recipe of ``tests/integration/build/tiny_recipe.py``, changed to write the layout of an example.
EXAMPLE_RECIPE = (
    RECIPE
    + """
_flat = build

def build(sources, out):
    (out / "tiny" / "1").mkdir(parents=True)
    _flat(sources, out / "tiny" / "1")
    (out / "tiny" / "1" / "labels.txt").rename(out / "tiny" / "labels.txt")
"""
)
SPEAKS_CONFIG = 'name: "speaks"\nbackend: "python"\n'

Assemble = Callable[[], Path]


@pytest.fixture
def examples(tmp_path: Path, tiny: Source) -> Path:
    """A folder with one example: a graph, a Python model with an environment, and a client."""
    example = tmp_path / "examples" / "small"
    files = {
        "recipe/recipe.py": EXAMPLE_RECIPE.format(source=tiny),
        "repository/tiny/config.pbtxt": CONFIG,
        "repository/speaks/config.pbtxt": SPEAKS_CONFIG,
        "repository/speaks/1/model.py": "class TritonPythonModel: ...\n",
        "repository/speaks/requirements.txt": "# the stub's own NumPy is enough\n",
        "repository/code/speaks/client.py": "# a client\n",
    }
    for name, text in files.items():
        (example / name).parent.mkdir(parents=True, exist_ok=True)
        (example / name).write_text(text)
    return example.parent


@pytest.fixture
def assemble(
    tmp_path: Path, examples: Path, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> Assemble:
    for name, value in registry.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings.read({"TRIREME_CACHE": str(tmp_path / "cache")})
    return lambda: example_repositories.prepare(settings, "small", folder=examples, stream=io.StringIO())


@pytest.mark.exhaustive
def test_an_example_has_gits_files_the_recipes_weights_and_an_environment(
    assemble: Assemble, examples: Path
) -> None:
    repository = assemble()
    files = {
        str(path.relative_to(repository))
        for path in repository.rglob("*")
        if path.is_file() and "env" not in path.relative_to(repository).parts
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
        "tiny/1/batching.py",
        "tiny/1/engines.py",
        "tiny/1/request_token.py",
        "tiny/config.pbtxt",
        "tiny/labels.txt",
    }
    assert (repository / "speaks" / "env" / "bin" / "activate").is_file()
    # The graph got the runner and its target's configuration; the Python model is unchanged.
    assert 'backend: "python"' in (repository / "tiny" / "config.pbtxt").read_text()
    assert (repository / "speaks" / "config.pbtxt").read_text() == SPEAKS_CONFIG
    onnxruntime.InferenceSession(str(repository / "tiny" / "1" / "model.onnx"))
    manifest = json.loads((repository / "tiny" / "1" / "manifest.json").read_text())
    assert manifest["source"]["name"].startswith("examples/small/recipe, ")

    # A second run builds nothing; what was lost is built again.
    inode_before = (repository / "tiny" / "config.pbtxt").stat().st_ino
    assert (assemble() / "tiny" / "config.pbtxt").stat().st_ino == inode_before
    (repository / "tiny" / "labels.txt").unlink()
    (examples / "small" / "repository" / "code" / "speaks" / "client.py").write_text("# another\n")
    assert (assemble() / "tiny" / "labels.txt").is_file()
    assert (repository / "code" / "speaks" / "client.py").read_text() == "# another\n"
    with pytest.raises(CommandError, match="'large'"):
        example_repositories.prepare(Settings.read({}), "large", folder=examples)
