"""Build a model that Triton serves on one target, from an ONNX file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sm.errors import CommandError
from sm.repository import manifest
from sm.repository.manifest import Accuracy, Manifest
from sm.repository.models import sha256, write_config
from trireme_extensions.convert import accuracy, build_request, targets
from trireme_extensions.convert.accuracy import Comparison
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import (
    Runner,
    Sizes,
    SizeSearch,
    format_sizes,
    named_sizes,
    session,
)
from trireme_extensions.convert.model_config import GENERATED_MARK, WarmUp, configure
from trireme_extensions.convert.onnx_graph import Graph, Graphs
from trireme_extensions.convert.plans import KEPT, Build
from trireme_extensions.convert.progress import PlainProgress
from trireme_extensions.convert.targets import GRAPH, descriptions
from trireme_extensions.convert.triton_tensors import adapt

#: The version folder that is built; others stay.
VERSION = "1"
#: A source whose tensors had to be adapted to Triton.
ADAPTED = "adapted.onnx"
#: A plan's source in another precision.
PRECISE = "precise.onnx"
#: The names of a build's folders in the repository begin like this, with its process id.
STAGE_PREFIX = ".building-{}-"
NOT_COMPARED = "It was not compared with its source (--no-compare)."


@dataclass(frozen=True)
class Trial:
    """The result of running the graph on random inputs. ``runner`` is None if it was not run."""

    runner: Runner | None = None
    found: tuple[Sizes, ...] = ()
    warm_up: WarmUp = field(default_factory=WarmUp)


class MeasuredEngines(NamedTuple):
    """The order of the engines by their times, and what int8 cost, for the manifest."""

    engines: tuple[str, ...] = ()
    quantized: Mapping[str, Any] | None = None


class ModelBuilder:
    """Builds one :class:`BuildRequest` of an ONNX file. ``models`` has configurations.

    The tools' ``DeskBuilder`` has the rest: recipes, exports, changes of the graph, calibration, and other
    engines on a CPU than ONNX Runtime in fp32.
    """

    def __init__(self, cache: Path, models: Path, progress: PlainProgress) -> None:
        self.cache = cache
        self.models = models
        self.progress = progress

    def build(self, request: BuildRequest) -> Path:
        """Build the model and return its folder in ``request.out``. Raises :class:`CommandError`."""
        with self._stage(request) as workshop, self._stage(request) as staged:
            source, name = self.find_source(request, workshop)
            self.describe(request, source, staged)
            adapted = adapt(
                source,
                workshop / ADAPTED,
                self.progress.say,
                lambda graph: build_request.ranges(request, graph, build_request.MAX_BATCH),
            )
            graphs = self.change(request, Graph.read(adapted), workshop, staged)
            trial = self._try(request, graphs)
            configuration = configure(request, graphs.served, self.models, self.progress.say, trial.warm_up)
            version = staged / VERSION
            version.mkdir()
            built = self._make(request, graphs, workshop, version, configuration.ranges)
            found = None
            if request.compare and trial.runner:
                with self.progress.step(f"{request.model}: comparing with its source"):
                    largest = configuration.final.max_batch_size
                    found = self.compare(request, graphs, trial, version / GRAPH, largest)
                self.progress.say(f"{request.model}: {accuracy.describe(found)}")
            measured = self.measure(request, graphs, trial, configuration.final, staged)
            origin = manifest.SourceGraph(name=name, sha256=sha256(source))
            self._write_manifest(request, graphs, origin, built, found, measured, version)
            if not configuration.is_hand_written:
                (staged / "config.pbtxt").write_text(GENERATED_MARK + write_config(configuration.final))
            self._place(staged, request.out / request.model)
        return request.out / request.model

    def find_source(self, request: BuildRequest, workshop: Path) -> tuple[Path, str]:  # noqa: ARG002
        """Return the graph, and its name for the manifest."""
        source = Path(request.source or "")
        return source, source.name

    def describe(self, request: BuildRequest, source: Path, staged: Path) -> None:  # noqa: ARG002
        """Copy labels, vocabulary and preprocessing, if the team has them."""
        folder = self.models / request.model
        for path in descriptions(folder) if folder.is_dir() else ():
            shutil.copy(path, staged / path.name)

    def change(self, request: BuildRequest, graph: Graph, workshop: Path, staged: Path) -> Graphs:  # noqa: ARG002
        """Return the graph before and after its changes."""
        return Graphs(graph, graph, graph)

    def convert(self, request: BuildRequest, graph: Graph, workshop: Path) -> Graph:
        """Return the graph of a plan, with the types that were asked for."""
        if not request.strongly_typed:
            return graph
        return targets.convert_precision(graph, request.precision, workshop / PRECISE)

    def _make(
        self,
        request: BuildRequest,
        graphs: Graphs,
        workshop: Path,
        version: Path,
        ranges: Mapping[str, Range],
    ) -> Build:
        with self.progress.step(f"{request.model}: building for {request.target}"):
            if request.target == "tensorrt":
                for size in build_request.fixed(graphs.prepared, ranges):
                    self.progress.say(f"{request.model}: the plan takes {size}; callers have to pad to it")
                typed = self.convert(request, graphs.prepared, workshop)
                return targets.tensorrt(graphs.prepared, typed, version, request, ranges)
            if request.precision != "fp32":
                raise CommandError(f"--precision {request.precision} is for --target tensorrt.")
            return targets.for_onnx_runtime(graphs.served, version, request.target)

    def _try(self, request: BuildRequest, graphs: Graphs) -> Trial:
        """Run the graph on random inputs, to learn which sizes it takes."""
        # A graph that came with its suppression or masks inside is served unchanged: it takes no random
        # thresholds, and its rows for masks cannot be stacked.
        if {"nms", "masks"} & {*request.changes} - {*graphs.applied}:
            return Trial()
        ranges = build_request.ranges(request, graphs.prepared, build_request.MAX_BATCH)
        try:
            runner = session(graphs.prepared.path, optimized=False)
            search = SizeSearch(graphs.prepared, runner, ranges)
            answered_sizes = search.find()
        except CommandError as error:
            if request.compare:
                raise
            self.progress.say(f"{request.model}: warning: {error}")
            return Trial(warm_up=WarmUp(possible=False))
        if search.refused:
            self.progress.say(
                f"{request.model}: answers at {', '.join(map(format_sizes, answered_sizes))}; "
                f"not at {', '.join(search.refused[:5])} ({search.refusal})"
            )
        # The second of three is the optimal one that the request sets.
        ordered = [*answered_sizes[1:2], *answered_sizes]
        warm_up_sizes = next((sizes for sizes in ordered if search.answers_zeros(sizes)), None)
        if warm_up_sizes is None:
            return Trial(runner, answered_sizes, WarmUp(possible=False))
        return Trial(runner, answered_sizes, WarmUp(named_sizes(graphs.served, warm_up_sizes)))

    def _write_manifest(
        self,
        request: BuildRequest,
        graphs: Graphs,
        source: manifest.SourceGraph,
        built: Build,
        accuracy: Accuracy | None,
        measured: MeasuredEngines,
        version: Path,
    ) -> None:
        warnings = () if request.compare else (NOT_COMPARED,)
        for warning in warnings:
            self.progress.say(f"{request.model}: warning: {warning}")
        Manifest(
            model=request.model,
            target=request.target,
            source=source,
            changes=graphs.applied,
            built=manifest.now(),
            accuracy=accuracy,
            warnings=warnings,
            **{name: getattr(request, name) for name in KEPT},
            **built._asdict(),
            **measured._asdict(),
        ).write(version)

    def compare(
        self, request: BuildRequest, graphs: Graphs, trial: Trial, built: Path, largest: int
    ) -> Accuracy:
        """Compare the graph ``built`` with its source on random inputs, in batches up to ``largest``."""
        ranges = build_request.ranges(request, graphs.prepared, build_request.MAX_BATCH)
        comparison = Comparison(graphs.prepared, max(1, largest), request.precision, ranges)
        return comparison.against(built, trial.runner, trial.found)

    def measure(self, *_: Any) -> MeasuredEngines:
        """Compare and time the engines of this processor, and write what a start compares; the tools do."""
        return MeasuredEngines()

    @contextmanager
    def _stage(self, request: BuildRequest) -> Iterator[Path]:
        """Yield a folder beside its final place, on the same disk; it is removed if the build fails."""
        try:
            request.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=request.out, prefix=STAGE_PREFIX.format(os.getpid())
            ) as folder:
                yield Path(folder)
        except OSError as error:
            raise CommandError(
                f"{request.out} cannot be written ({error.strerror}): name another folder with --out."
            ) from error

    def _place(self, staged: Path, target: Path) -> None:
        """Move the version folder into place in one step. Files beside it are replaced, others stay."""
        target.mkdir(exist_ok=True)
        if (target / VERSION).exists():
            (target / VERSION).rename(staged / "old")
        (staged / VERSION).rename(target / VERSION)
        for path in staged.iterdir():
            if path.is_file():
                path.replace(target / path.name)


def default_out(cache: Path, target: str) -> Path:
    """Return the default folder of ``sm build-model``, which is not that of ``sm prepare``."""
    return cache.expanduser().absolute() / "built" / target
