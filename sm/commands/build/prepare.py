"""``sm prepare``: build a Triton repository with the demo's models, and nothing twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from sm.commands.build import demo_pictures, recipes
from sm.commands.build.fetch import Fetcher
from sm.commands.build.package_registries import Registries
from sm.commands.build.recipes import Recipe
from sm.commands.build.repository_assembly import GRAPH, CpuRepository
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository.cache import Cache
from sm.settings import HERE, Settings


def prepare(
    settings: Settings,
    models: Sequence[str] | None = None,
    *,
    folder: Path = HERE / "model",
    stream: TextIO = sys.stderr,
) -> Path:
    """Build what is missing and return the CPU target's model repository.

    ``models`` are the names to serve; None for all with a recipe. Progress goes to ``stream``. Raises
    :class:`CommandError`.
    """
    cache, progress = Cache(settings.cache), Progress(stream)
    with cache.locked(progress.say):
        return Preparation(cache, folder, progress).run(models)


class Preparation:
    """One run that holds the cache's lock."""

    def __init__(self, cache: Cache, folder: Path, progress: Progress) -> None:
        self.cache = cache
        self.folder = folder
        self.progress = progress
        self.fetcher = Fetcher(cache, Registries(cache, progress, os.environ), progress)

    def run(self, models: Sequence[str] | None) -> Path:
        built = {recipe.model: self.build(recipe) for recipe in map(Recipe.load, self.chosen(models))}
        if demo_pictures.STREET.model in built:
            demo_pictures.provide(demo_pictures.STREET, self.cache, self.fetcher)
        repository = CpuRepository(self.cache, self.folder)
        if not repository.is_current(built):
            with self.progress.step(f"{', '.join(built)}: assembling {repository.path}"):
                repository.assemble(built)
        return repository.path

    def chosen(self, models: Sequence[str] | None) -> tuple[Path, ...]:
        """Return the folders of the named models; of all if None."""
        recipe_paths = {path.name: path for path in recipes.find(self.folder)}
        unknown = [name for name in models or () if name not in recipe_paths]
        if unknown:
            raise CommandError(
                f"there is no recipe for {', '.join(unknown)}; there is for {', '.join(recipe_paths)}."
            )
        return tuple(path for name, path in recipe_paths.items() if models is None or name in models)

    def build(self, recipe: Recipe, product: str = GRAPH) -> Path:
        """Return the folder with the recipe's results, at least ``product``, after building it if needed."""
        artifact = self.cache.models / recipe.model / recipe.key
        if artifact.is_dir():
            return artifact
        sources = {source.name: self.fetcher.fetch(source, recipe.model) for source in recipe.sources}
        with self.cache.scratch_folder() as workshop:
            out = workshop / recipe.key
            out.mkdir()
            with self.progress.step(f"{recipe.model}: converting to ONNX"):
                self._convert(recipe, sources, out, product)
            self.cache.place(out, artifact)
        self._forget_others(artifact)
        return artifact

    def _convert(self, recipe: Recipe, sources: dict[str, Path], out: Path, product: str) -> None:
        try:
            recipe.build(sources, out)
        except OSError:  # a full disk has its own sentence
            raise
        except Exception as error:
            raise CommandError(f"{recipe.model}: its recipe failed: {error!r}.") from error
        if not (out / product).exists():
            raise CommandError(f"{recipe.model}: its recipe wrote no {product}.")

    def _forget_others(self, artifact: Path) -> None:
        """Remove models of older versions of the recipe; the repository has its own links."""
        for other in artifact.parent.iterdir():
            if other != artifact:
                self.cache.discard(other)
