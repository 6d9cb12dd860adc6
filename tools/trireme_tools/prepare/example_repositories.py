"""Assemble the examples into Triton repositories: each alone, or all of them with the demo's models.

An example is a folder of ``examples/``::

    recipe/recipe.py     the source of its weights; it writes ``<model>/1/model.onnx`` and the like
    repository/          its repository without weights: configurations, Python models, ``code/<client>``
    curl.txt             a command that shows it, with the placeholders {address} and {folder}

A model with a ``requirements.txt`` gets an environment from it, as its ``env`` folder. A model with
a graph and no ``model.py`` runs on the CPU as the demo's models do.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sm.errors import CommandError
from sm.repository import machine
from sm.settings import HERE, Settings
from trireme_extensions.convert.targets import GRAPH, RUNNER, link
from trireme_tools.build import golden_data
from trireme_tools.cache import Cache
from trireme_tools.environments.pack_env import MARK_FILE, Environments
from trireme_tools.environments.stub import Stub
from trireme_tools.prepare.cpu_repository import STAMP, digests, is_stamped, run_on_cpu, write_stamp
from trireme_tools.prepare.demo import DemoPreparation
from trireme_tools.prepare.recipes import Recipe
from trireme_tools.progress import Progress

#: The repository of all examples, and the folder of the repositories with one example.
ALL_FOLDER, SINGLE_FOLDER = "examples", "example"
REQUIREMENTS, ENVIRONMENT = "requirements.txt", "env"


@dataclass(frozen=True)
class Example:
    """An example, by its folder in git."""

    folder: Path

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def files(self) -> Iterator[Path]:
        """Return the files of its repository that are in git."""
        return (
            path
            for path in sorted(self.repository.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        )


def find(folder: Path) -> tuple[Example, ...]:
    """Return the examples in ``folder``, sorted by name."""
    return tuple(Example(path.parent) for path in sorted(folder.glob("*/repository")))


def prepare(
    settings: Settings,
    name: str = "",
    *,
    folder: Path = HERE / "examples",
    stream: TextIO = sys.stderr,
) -> Path:
    """Build what is missing and return the repository: of one example, or of all with the demo's models.

    Progress goes to ``stream``. Raises :class:`CommandError` with the reason.
    """
    examples = [example for example in find(folder) if name in ("", example.folder.name)]
    if not examples:
        raise CommandError(f"there is no example {name!r} in {folder}.")
    cache, progress = Cache(settings.cache), Progress(stream)
    stub = Stub.find(machine.find_server(settings), "")
    with cache.locked(progress.say):
        demo = None if name else DemoPreparation(cache, HERE / "model", progress).run(None)
        path = cache.repositories / (Path(SINGLE_FOLDER) / name if name else ALL_FOLDER)
        Assembly(cache, progress, stub, path).run(examples, demo)
    return path


class Assembly:
    """Assembles one repository at ``path``; the caller holds the cache's lock."""

    def __init__(self, cache: Cache, progress: Progress, stub: Stub, path: Path) -> None:
        self.cache = cache
        self.progress = progress
        self.stub = stub
        self.path = path
        self.environments = Environments(cache, progress)

    def run(self, examples: Iterable[Example], demo: Path | None) -> None:
        """Assemble the repository unless it is current. ``demo``: a repository whose models it includes."""
        weights_by_example = {example: self._build_weights(example) for example in examples}
        environments = {
            str(path.relative_to(example.repository).parent): self._make_environment(path)
            for example in weights_by_example
            for path in sorted(example.repository.glob(f"*/{REQUIREMENTS}"))
        }
        inputs = self._inputs(weights_by_example, environments, demo)
        if is_stamped(self.path, inputs):
            return
        with (
            self.progress.step(f"assembling {self.path}"),
            self.cache.scratch_folder() as workshop,
        ):
            staged = workshop / "staged"
            staged.mkdir()
            if demo:
                _link_tree(demo, staged)
                (staged / STAMP).unlink()
            for example, weights in weights_by_example.items():
                self._add(example, weights, staged)
            for model, environment in environments.items():
                shutil.copytree(
                    environment, staged / model / ENVIRONMENT, symlinks=True, copy_function=_link_or_copy
                )
            write_stamp(staged, inputs)
            self.cache.place(staged, self.path)

    def _build_weights(self, example: Example) -> Path:
        preparation = DemoPreparation(self.cache, example.folder.parent, self.progress)
        return preparation.build(Recipe.load(example.folder), product=".")

    def _make_environment(self, requirements: Path) -> Path:
        return self.environments.make_locked(requirements, False, self.stub)[0]

    def _add(self, example: Example, weights: Path, staged: Path) -> None:
        for path in example.files():
            target = staged / path.relative_to(example.repository)
            if target.exists():
                raise CommandError(f"{path}: another example has a {target.relative_to(staged)} too.")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        _link_tree(weights, staged)
        for graph in sorted(weights.glob(f"*/1/{GRAPH}")):
            model = graph.parent.parent.name
            if not (staged / model / "1" / "model.py").exists():
                source = f"examples/{example.folder.name}/recipe, {weights.name}"
                described = example.repository / model / "config.pbtxt"
                run_on_cpu(staged / model, described, source, client=staged / "code" / model)

    def _inputs(
        self, weights_by_example: Mapping[Example, Path], environments: Mapping[str, Path], demo: Path | None
    ) -> dict[str, str]:
        files = [
            *RUNNER,
            *golden_data.BESIDE,
            Path(__file__),
            *(path for example in weights_by_example for path in example.files()),
        ]
        return {
            **digests(files),
            **{example.folder.name: str(weights) for example, weights in weights_by_example.items()},
            **{model: (environment / MARK_FILE).read_text() for model, environment in environments.items()},
            "demo": hashlib.sha256((demo / STAMP).read_bytes()).hexdigest() if demo else "",
        }


def _link_tree(source: Path, target: Path) -> None:
    """Add a tree's folders and files to another tree; the files are hard links."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            link(path, place)


def _link_or_copy(source: str, target: str) -> None:
    link(Path(source), Path(target))
