"""``sm build-model``: a graph, from a recipe or a file, to a model that Triton serves on one target."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sm.cache import Cache
from sm.errors import StartError
from sm.repository import manifest
from sm.repository.manifest import Accuracy, Manifest
from sm.settings import HERE
from sm.tools.build import build_request, model_config, suppression, targets
from sm.tools.build.accuracy import Comparison, session
from sm.tools.build.build_request import BuildRequest, Range
from sm.tools.build.changes import DESCRIPTION, TOKENIZER, Graphs
from sm.tools.build.configuring import OURS, configure
from sm.tools.build.exporting import export
from sm.tools.build.fetch import sha256
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.prepare import Preparation
from sm.tools.build.recipes import Recipe
from sm.tools.build.repository_assembly import GRAPH, descriptions, link
from sm.tools.build.samples import InProcess, agreement
from sm.tools.build.targets import BuiltModel
from sm.tools.progress import Progress

#: What is built goes into this version folder; others stay.
VERSION = "1"


class ModelBuilder:
    """Build one :class:`BuildRequest`; ``models`` holds recipes and configurations."""

    def __init__(self, cache: Cache, models: Path, progress: Progress) -> None:
        self.cache = cache
        self.models = models
        self.progress = progress

    def build(self, wanted: BuildRequest) -> Path:
        """The model's folder in ``wanted.out``; :class:`StartError` says in a sentence why there is none."""
        with self._staged(wanted) as workshop, self._staged(wanted) as staged:
            source, name = self._source(wanted, workshop)
            self._describe(wanted, source, staged)
            graphs = wanted.changes.graphs(
                Graph.read(source),
                self._described(wanted, DESCRIPTION, self.models / wanted.model),
                workshop,
                plugin=wanted.target == "tensorrt",
                tokenizer=self._described(wanted, TOKENIZER, staged),
            )
            configuration = configure(wanted, graphs, self.models, self.progress.say)
            version = staged / VERSION
            version.mkdir()
            made = self._make(wanted, graphs, version, configuration.ranges)
            self._write_manifest(wanted, graphs, name, made, configuration.final.max_batch_size, version)
            if not configuration.kept:
                (staged / "config.pbtxt").write_text(OURS + model_config.text(configuration.final))
            self._place(staged, wanted.out / wanted.model)
        return wanted.out / wanted.model

    def _source(self, wanted: BuildRequest, workshop: Path) -> tuple[Path, str]:
        """The graph, and what the manifest calls it."""
        if isinstance(wanted.source, Path):
            return wanted.source, wanted.source.name
        if wanted.source:
            return export(wanted.source, workshop / GRAPH, self.progress), wanted.source
        folder = self.models / wanted.model
        if not (folder / "recipe" / "recipe.py").is_file():
            raise StartError(f"{folder} has no recipe: name an ONNX file or a hub id with --source.")
        with self.cache.locked(self.progress.say):
            artifact = Preparation(self.cache, self.models, self.progress).build(Recipe.load(folder))
        return artifact / GRAPH, f"model/{wanted.model}/recipe, {artifact.name}"

    def _described(self, wanted: BuildRequest, name: str, folder: Path) -> Path:
        """What says how the model is asked: that of ``folder``, else the repository's own."""
        ours, own = folder / name, wanted.out / wanted.model / name
        return own if own.is_file() and not ours.is_file() else ours

    def _make(
        self, wanted: BuildRequest, graphs: Graphs, version: Path, ranges: Mapping[str, Range]
    ) -> BuiltModel:
        with self.progress.step(f"{wanted.model}: building for {wanted.target}"):
            if wanted.target == "tensorrt":
                for size in build_request.fixed(graphs.given, ranges):
                    self.progress.say(f"{wanted.model}: the plan takes {size}; callers have to pad to it")
                return targets.tensorrt(graphs.given, version, wanted, ranges)
            if wanted.precision != "fp32":
                raise StartError(f"--precision {wanted.precision} is for --target tensorrt.")
            return (targets.cpu if wanted.target == "cpu" else targets.onnxruntime)(graphs.served, version)

    def _write_manifest(
        self, wanted: BuildRequest, graphs: Graphs, name: str, made: BuiltModel, largest: int, version: Path
    ) -> None:
        accuracy = None
        # A graph that came with its end inside is served as it came: it takes no random thresholds, and its
        # rows for masks cannot be stacked.
        whole = (graphs.made.nms, graphs.made.masks) == (wanted.changes.nms, wanted.changes.masks)
        if (version / GRAPH).exists() and whole:
            with self.progress.step(f"{wanted.model}: comparing with its source"):
                accuracy = self._accuracy(wanted, graphs, largest, version)
            self.progress.say(f"{wanted.model}: {accuracy}")
        Manifest(
            model=wanted.model,
            target=wanted.target,
            source=manifest.Source(name=name, sha256=sha256(graphs.source.path)),
            tool=made.tool,
            precision=wanted.precision,
            changes=graphs.made.names,
            gpu=made.gpu,
            profiles=made.profiles,
            strongly_typed=wanted.strongly_typed,
            seconds=made.seconds,
            built=manifest.now(),
            accuracy=accuracy,
        ).write(version)

    def _accuracy(self, wanted: BuildRequest, graphs: Graphs, largest: int, version: Path) -> Accuracy:
        """On random inputs; and, of a model with a recipe, on the samples of its client.

        Suppression makes jumps of small differences, so the rows before it are compared, and the answers;
        of the masks there are the best words, so the logits of all are compared.
        """
        with tempfile.TemporaryDirectory() as folder:
            served = plain = version / GRAPH
            if graphs.made.nms:
                plain = suppression.removed(served, graphs.given, Path(folder) / GRAPH)
            elif graphs.made.masks:
                plain = graphs.given.path
            found = Comparison(graphs.given, max(1, largest), wanted.precision).against(plain)
            if wanted.source:
                return found
            repository = Path(folder) / "repository"
            repository.mkdir()
            (repository / wanted.model).symlink_to(version.parent)
            # No processor runs TensorRT's plugin.
            built = Graph.read(plain if wanted.target == "tensorrt" else served)
            alike = agreement(
                HERE / "clients" / wanted.model,
                repository,
                InProcess(graphs.source, session(graphs.source.path, optimized=False)),
                InProcess(built, session(built.path, optimized=wanted.precision == "fp32")),
            )
        if wanted.precision == "fp32" and alike and alike[0] < alike[1]:
            raise StartError(
                f"{wanted.model} as built answers {alike[1] - alike[0]} of {alike[1]} samples otherwise than "
                "its source does: leave out what changes the graph."
            )
        return found.model_copy(update={"samples": alike})

    def _describe(self, wanted: BuildRequest, source: Path, staged: Path) -> None:
        """Labels, a vocabulary and preprocessing, where the recipe or the team has them."""
        if wanted.source is None:
            for path in source.parent.iterdir():
                if path.name != GRAPH:
                    link(path, staged / path.name)
        folder = self.models / wanted.model
        for path in descriptions(folder) if folder.is_dir() else ():
            shutil.copy(path, staged / path.name)
        if wanted.changes.nms and wanted.target == "tensorrt":
            suppression.describe(staged)

    @contextmanager
    def _staged(self, wanted: BuildRequest) -> Iterator[Path]:
        """A folder beside its later place, on the same disk; gone if the build fails."""
        try:
            wanted.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=wanted.out, prefix=".building-") as folder:
                yield Path(folder)
        except OSError as error:
            raise StartError(
                f"{wanted.out} cannot be written ({error.strerror}): name another folder with --out."
            ) from error

    def _place(self, staged: Path, target: Path) -> None:
        """The version folder in one step each way; files beside it are replaced, others stay."""
        target.mkdir(exist_ok=True)
        if (target / VERSION).exists():
            (target / VERSION).rename(staged / "old")
        (staged / VERSION).rename(target / VERSION)
        for path in staged.iterdir():
            if path.is_file():
                path.replace(target / path.name)


def default_out(cache: Path, target: str) -> Path:
    """Where ``sm build-model`` builds if nobody says: apart from what ``sm prepare`` made."""
    return cache.expanduser().absolute() / "built" / target
