"""Recipes: ``model/<name>/recipe/recipe.py``, which turns package files into an ONNX model.

A recipe module has::

    SOURCES: tuple[Source, ...]                  # the packages it needs
    BY_HAND: tuple[str, ...]                     # optional: files of the folder that build() does not use
    def build(sources: Mapping[str, Path], out: Path) -> None

``build`` gets each source's file by the source's name and writes ``out/model.onnx`` with whatever
belongs beside it (labels, a vocabulary). It needs numpy and onnx alone. A recipe imports its
neighbours relatively: ``from .shards import read``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sm.errors import CommandError
from trireme_tools.prepare.packages import PackageFile

#: The package name of recipes, apart from everything that a user can import.
PACKAGE = "trireme_recipes"

Build = Callable[[Mapping[str, Path], Path], None]


@dataclass(frozen=True)
class Recipe:
    """How to build one model. ``key`` changes with everything that the result depends on."""

    model: str
    folder: Path
    sources: tuple[PackageFile, ...]
    build: Build
    key: str

    @classmethod
    def load(cls, model: Path) -> Recipe:
        """Load the recipe of the model folder ``model``. Raises :class:`CommandError`."""
        folder = model / "recipe"
        try:
            module = _import(model.name.replace("-", "_"), folder)
            sources, build = tuple(module.SOURCES), module.build
        except Exception as error:
            raise CommandError(f"{folder / 'recipe.py'} cannot be used: {error!r}.") from error
        key = _digest(folder, getattr(module, "BY_HAND", ()), sources)
        return cls(model.name, folder, sources, build, key)


def find(models: Path) -> tuple[Path, ...]:
    """Return the folders of ``models`` that have a recipe, sorted by name."""
    return tuple(sorted(path.parent.parent for path in models.glob("*/recipe/recipe.py")))


def _import(name: str, folder: Path) -> ModuleType:
    package = ModuleType(f"{PACKAGE}.{name}")
    for stale in [
        module_name for module_name in sys.modules if module_name.startswith(f"{package.__name__}.")
    ]:
        del sys.modules[stale]
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.recipe", folder / "recipe.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder / 'recipe.py'} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _digest(folder: Path, by_hand: tuple[str, ...], sources: tuple[PackageFile, ...]) -> str:
    digest = hashlib.sha256()
    for path in _files(folder, by_hand):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for source in sources:
        digest.update(source.sha256.encode())
    return digest.hexdigest()[:16]


def _files(folder: Path, by_hand: tuple[str, ...]) -> Iterator[Path]:
    """Yield the recipe's files, without those for manual use. A file that is not excluded causes a rebuild
    too many, never one too few.
    """
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        left_out = path.suffix in (".md", ".pyc") or str(relative) in by_hand
        if path.is_file() and not left_out:
            yield path
