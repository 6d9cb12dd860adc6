"""Build a Triton repository with the demo's models, and nothing twice; with the demo's picture.

The picture may not be in git: it is extracted from the package that contains it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TextIO, TypeVar

from sm.errors import CommandError
from sm.settings import HERE, Settings
from trireme_extensions.convert.onnx_cpu.engines import GRAPH
from trireme_tools.cache import Cache
from trireme_tools.prepare import packages, recipes
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.prepare.recipes import Recipe
from trireme_tools.progress import Progress

#: The package with the picture of a street, the picture in it, and the model that it is shown to.
STREET = PackageFile(
    kind="pypi",
    name="ultralytics",
    version="8.4.190",
    sha256="bd309728efa168af64d39040136828edd2dbcb4aeceb4510bdff4f3ca0ea01b8",
    size=1_433_396,
    licence="AGPL-3.0",
    note="the demo takes a picture of a street out of it, and runs none of its code",
)
STREET_MEMBER, STREET_MODEL = "ultralytics/assets/bus.jpg", "yolov5"


def provide_picture(
    cache: Cache, fetcher: Fetcher, source: PackageFile = STREET, member: str = STREET_MEMBER
) -> Path:
    """Take the picture of a street out of its package, unless the cache has it."""
    if cache.street_picture.exists():
        return cache.street_picture
    with zipfile.ZipFile(fetcher.fetch(source, STREET_MODEL)) as wheel, cache.scratch_folder() as workshop:
        (workshop / "picture").write_bytes(wheel.read(member))
        cache.place(workshop / "picture", cache.street_picture)
    return cache.street_picture


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
        return DemoPreparation(cache, folder, progress).run(models)


def build_recipe(root: Path, model: Path, progress: Progress) -> Path:
    """Return the folder in the cache ``root`` with what the recipe of the folder ``model`` makes.

    ``sm build-model`` calls it.
    """
    cache = Cache(root)
    with cache.locked(progress.say):
        return DemoPreparation(cache, model.parent, progress).build(Recipe.load(model))


Key = TypeVar("Key")
Result = TypeVar("Result")


class DemoPreparation:
    """One run that holds the cache's lock."""

    def __init__(self, cache: Cache, folder: Path, progress: Progress) -> None:
        self.cache = cache
        self.folder = folder
        self.progress = progress
        self.fetcher = Fetcher(cache, progress, os.environ)
        self._locks, self._locks_lock = dict[str, threading.Lock](), threading.Lock()

    def run(self, models: Sequence[str] | None) -> Path:
        # Here, as the models are built while the libraries of an assembly are installed.
        from trireme_tools.prepare.cpu_repository import CpuRepository

        built = self.build_all([Recipe.load(path) for path in self.chosen(models)])
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

    def build_beside(self, folders: Iterable[Path], job: Callable[[], object]) -> None:
        """Build what the recipes of model folders make, while ``job`` runs."""
        jobs: dict[Path | str, Callable[[], object]] = {"packages": job}
        for path in folders:
            product = GRAPH if path.parent == self.folder else "."  # an example has several
            jobs[path] = partial(self.build, Recipe.load(path), product)
            if path.name == STREET_MODEL:
                jobs["picture"] = partial(provide_picture, self.cache, self.fetcher)
        self._run_all(jobs)

    def build_all(self, recipes: Sequence[Recipe]) -> dict[str, Path]:
        """Build models at once: one is converted while others are fetched; with the demo's picture."""
        jobs: dict[str | None, Callable[[], Path]] = {
            recipe.model: partial(self.build, recipe) for recipe in recipes
        }
        if STREET_MODEL in jobs:
            jobs[None] = partial(provide_picture, self.cache, self.fetcher)
        results = self._run_all(jobs)
        return {recipe.model: results[recipe.model] for recipe in recipes}

    def _run_all(self, jobs: Mapping[Key, Callable[[], Result]]) -> dict[Key, Result]:
        """Run jobs at once; the first that fails stops what the others fetch."""
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            futures = {name: pool.submit(job) for name, job in jobs.items()}
            try:
                for future in as_completed(futures.values()):
                    future.result()
            except BaseException:  # Ctrl-C too
                pool.shutdown(wait=False, cancel_futures=True)
                self.fetcher.stop()
                raise
            return {name: future.result() for name, future in futures.items()}

    def build(self, recipe: Recipe, product: str = GRAPH) -> Path:
        """Return the folder with the recipe's results, at least ``product``, after building it if needed."""
        artifact = self.cache.models / recipe.model / recipe.key
        if artifact.is_dir():
            return artifact
        sources = {source.name: self._fetch(source, recipe.model) for source in recipe.sources}
        with self.cache.scratch_folder() as workshop:
            out = workshop / recipe.key
            out.mkdir()
            with self.progress.step(f"{recipe.model}: converting to ONNX"):
                self._convert(recipe, sources, out, product)
            self.cache.place(out, artifact)
        self._forget_others(artifact)
        return artifact

    def _fetch(self, source: PackageFile, model: str) -> Path:
        """Fetch a package once, though two models may need it at the same time."""
        with self._locks_lock:
            lock = self._locks.setdefault(source.file, threading.Lock())
        with lock:
            return self.fetcher.fetch(source, model)

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


def missing_sources(cache: Cache, model_folders: Iterable[Path]) -> dict[str, list[PackageFile]]:
    """Return what is not in the cache, by model. A model that is built needs none of its packages."""
    recipes = [Recipe.load(folder) for folder in model_folders]
    needed: dict[str, list[PackageFile]] = {
        recipe.model: list(recipe.sources)
        for recipe in recipes
        if not (cache.models / recipe.model / recipe.key).is_dir()
    }
    if STREET_MODEL in {recipe.model for recipe in recipes} and not cache.street_picture.exists():
        needed.setdefault(STREET_MODEL, []).append(STREET)
    missing: dict[str, list[PackageFile]] = {}
    files = set[str]()
    for model, sources in needed.items():
        for source in sources:
            if source.file not in files and not (cache.downloads / source.file).exists():
                files.add(source.file)  # two models may need one package
                missing.setdefault(model, []).append(source)
    return missing


def table(cache: Cache, missing: dict[str, list[PackageFile]]) -> Iterator[str]:
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
    npm = any(source.kind == "npm" for _, source in rows) and not packages.has_npm(cache)
    if npm:
        node, size = packages.NODE, packages.NODE_SIZE
        total += size
        yield f"  {size / 1e6:>7.1f} MB  {node}, as there is no npm"
    free = shutil.disk_usage(_existing(cache.root)).free
    yield f"  {total / 1e6:>7.1f} MB  in all; {free / 1e6:,.0f} MB are free there"


def _existing(folder: Path) -> Path:
    """Return the first folder above that exists."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), HERE)
