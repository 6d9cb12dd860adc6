"""The examples, each assembled into a Triton repository, alone or all of them with the demo's models.

An example is a folder of ``examples/``::

    recipe/recipe.py     what its weights are made from; it writes ``<model>/1/model.onnx`` and the like
    repository/          what git has of its repository: configurations, Python models, ``code/<client>``
    curl.txt             a command that shows it, with {address} and {folder} to be filled in

A model with a ``requirements.txt`` gets an environment from it, as its ``env`` folder. A model that is
given a graph and has no ``model.py`` is run on the CPU as the demo's are.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sm.cache import Cache
from sm.errors import StartError
from sm.settings import HERE, Settings
from sm.tools.build.prepare import Preparation
from sm.tools.build.recipes import Recipe
from sm.tools.build.repository_assembly import GRAPH, RUNNER, STAMP, digests, finish, link, sizes
from sm.tools.environments.pack_env import MARK, Environments
from sm.tools.progress import Progress
from sm.triton import server
from sm.triton.python_stub import Stub

#: The repository of all examples, and the folder of those with one alone.
ALL, ALONE = "examples", "example"
REQUIREMENTS, ENVIRONMENT = "requirements.txt", "env"


@dataclass(frozen=True)
class Example:
    """``folder`` as it lies in git."""

    folder: Path

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def files(self) -> Iterator[Path]:
        """What git has of its repository."""
        return (
            path
            for path in sorted(self.repository.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        )


def find(folder: Path) -> tuple[Example, ...]:
    """The examples in ``folder``, in the order of their names."""
    return tuple(Example(path.parent) for path in sorted(folder.glob("*/repository")))


def prepare(
    settings: Settings,
    name: str = "",
    *,
    folder: Path = HERE / "examples",
    stream: TextIO = sys.stderr,
) -> Path:
    """Build what is missing and return the repository: of one example, or of all with the demo's models.

    Progress goes to ``stream``. :class:`StartError` says in a sentence what cannot be done.
    """
    examples = [example for example in find(folder) if name in ("", example.folder.name)]
    if not examples:
        raise StartError(f"there is no example {name!r} in {folder}.")
    cache, progress = Cache(settings.cache), Progress(stream)
    stub = Stub.find(server.find(settings), "")
    with cache.locked(progress.say):
        demo = None if name else Preparation(cache, HERE / "model", progress).run(None)
        path = cache.repositories / (Path(ALONE) / name if name else ALL)
        Assembly(cache, progress, stub, path).run(examples, demo)
    return path


class Assembly:
    """One repository at ``path``, made by one run that is alone in the cache."""

    def __init__(self, cache: Cache, progress: Progress, stub: Stub, path: Path) -> None:
        self.cache = cache
        self.progress = progress
        self.stub = stub
        self.path = path
        self.environments = Environments(cache, progress)

    def run(self, examples: Iterable[Example], demo: Path | None) -> None:
        """Make it, unless it is there: ``demo`` is a repository whose models it has too."""
        parts = {example: self._weights(example) for example in examples}
        packed = {
            str(path.relative_to(example.repository).parent): self._packed(path)
            for example in parts
            for path in sorted(example.repository.glob(f"*/{REQUIREMENTS}"))
        }
        inputs = self._inputs(parts, packed, demo)
        if self._is_current(inputs):
            return
        with (
            self.progress.step(f"assembling {self.path}"),
            self.cache.scratch_folder() as workshop,
        ):
            made = workshop / "made"
            made.mkdir()
            if demo:
                _lay(demo, made)
                (made / STAMP).unlink()
            for example, weights in parts.items():
                self._add(example, weights, made)
            for model, environment in packed.items():
                shutil.copytree(
                    environment, made / model / ENVIRONMENT, symlinks=True, copy_function=_link_or_copy
                )
            (made / STAMP).write_text(json.dumps({"inputs": inputs, "files": sizes(made)}))
            self.cache.place(made, self.path)

    def _weights(self, example: Example) -> Path:
        preparation = Preparation(self.cache, example.folder.parent, self.progress)
        return preparation.build(Recipe.load(example.folder), product=".")

    def _packed(self, requirements: Path) -> Path:
        return self.environments.make_locked(requirements, False, self.stub)[0]

    def _add(self, example: Example, weights: Path, made: Path) -> None:
        for path in example.files():
            target = made / path.relative_to(example.repository)
            if target.exists():
                raise StartError(f"{path}: another example has a {target.relative_to(made)} too.")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        _lay(weights, made)
        for graph in sorted(weights.glob(f"*/1/{GRAPH}")):
            model = graph.parent.parent.name
            if not (made / model / "1" / "model.py").exists():
                source = f"examples/{example.folder.name}/recipe, {weights.name}"
                finish(made / model, example.repository / model / "config.pbtxt", source)

    def _inputs(
        self, parts: Mapping[Example, Path], packed: Mapping[str, Path], demo: Path | None
    ) -> dict[str, str]:
        files = [*RUNNER, Path(__file__), *(path for example in parts for path in example.files())]
        return {
            **digests(files),
            **{example.folder.name: str(weights) for example, weights in parts.items()},
            **{model: (environment / MARK).read_text() for model, environment in packed.items()},
            "demo": hashlib.sha256((demo / STAMP).read_bytes()).hexdigest() if demo else "",
        }

    def _is_current(self, inputs: Mapping[str, str]) -> bool:
        try:
            made = json.loads((self.path / STAMP).read_text())
        except (OSError, ValueError):
            return False
        return bool(made == {"inputs": inputs, "files": sizes(self.path)})


def _lay(source: Path, target: Path) -> None:
    """A tree over another: second names for its files."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            link(path, place)


def _link_or_copy(source: str, target: str) -> None:
    link(Path(source), Path(target))
