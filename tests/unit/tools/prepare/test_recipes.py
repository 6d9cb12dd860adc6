"""Recipes are found in their folders, loaded separately, and keyed by all files that they build from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm.settings import HERE
from trireme_tools.prepare import recipes
from trireme_tools.prepare.recipes import Recipe

RECIPE = "SOURCES = ()\ndef build(sources, out):\n    pass\n"


def write_recipe(folder: Path, **files: str) -> Path:
    """Write a model folder. ``recipe`` is the text of recipe.py; other names are files beside it."""
    (folder / "recipe").mkdir(parents=True, exist_ok=True)
    for name, text in {"recipe": RECIPE, **files}.items():
        (folder / "recipe" / (f"{name}.py" if name == "recipe" else name)).write_text(text)
    return folder


def test_the_key_changes_with_every_file_of_the_recipe_and_with_nothing_else(tmp_path: Path) -> None:
    text = RECIPE + 'BY_HAND = ("train.py",)\n'
    model = write_recipe(
        tmp_path / "one", recipe=text, **{"weights.npz": "a", "train.py": "a", "README.md": "a"}
    )
    first_key = Recipe.load(model).key
    write_recipe(model, recipe=text, **{"weights.npz": "b"})
    assert Recipe.load(model).key != first_key
    write_recipe(model, recipe=text, **{"weights.npz": "a", "train.py": "b", "README.md": "b"})
    assert Recipe.load(model).key == first_key
    shutil.copytree(model, tmp_path / "elsewhere" / "one")
    assert Recipe.load(tmp_path / "elsewhere" / "one").key == first_key


@pytest.mark.parametrize("model", recipes.find(HERE / "model"), ids=lambda path: path.name)
def test_the_sources_of_the_demo_models_are_pinned_by_digest(model: Path) -> None:
    for source in Recipe.load(model).sources:
        assert len(source.sha256) == 64
        assert source.size > 1000
        assert source.licence
        assert source.note
        assert source.name in (HERE / "NOTICE").read_text()
