"""Build a model that Triton serves on one target, from a recipe or an ONNX file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from sm.commands import part_of_tools
from sm.errors import CommandError
from sm.repository import manifest
from sm.repository.manifest import Accuracy, Manifest, Quantized
from sm.repository.models import sha256, write_config
from sm.settings import HERE
from trireme_extensions.convert import build_request, int8, samples, suppression, targets
from trireme_extensions.convert.accuracy import REPORT, Comparison, fastest_first, write_report
from trireme_extensions.convert.build_request import BuildRequest, Range
from trireme_extensions.convert.changes import DESCRIPTION, TOKENIZER, Graphs
from trireme_extensions.convert.graph_runner import (
    Runner,
    Sizes,
    SizeSearch,
    format_sizes,
    named_sizes,
    session,
)
from trireme_extensions.convert.model_config import GENERATED_MARK, WarmUp, configure
from trireme_extensions.convert.onnx_cpu.engines import GOLDEN
from trireme_extensions.convert.onnx_graph import Graph
from trireme_extensions.convert.progress import PlainProgress
from trireme_extensions.convert.samples import InProcess, count_equal_answers
from trireme_extensions.convert.targets import GRAPH, BuiltModel, descriptions, link
from trireme_extensions.convert.triton_tensors import adapt

#: The version folder that is built; others stay.
VERSION = "1"
#: A source whose tensors had to be adapted to Triton.
ADAPTED = "adapted.onnx"
#: The names of a build's folders in the repository begin like this, with its process id.
STAGE_PREFIX = ".building-{}-"
NOT_COMPARED = "It was not compared with its source (--no-compare)."


@dataclass(frozen=True)
class Trial:
    """The result of running the graph on random inputs. ``runner`` is None if it was not run."""

    runner: Runner | None = None
    found: tuple[Sizes, ...] = ()
    warm_up: WarmUp = field(default_factory=WarmUp)


class ModelBuilder:
    """Builds one :class:`BuildRequest`. ``models`` has recipes and configurations."""

    def __init__(self, cache: Path, models: Path, progress: PlainProgress) -> None:
        self.cache = cache
        self.models = models
        self.progress = progress

    def build(self, request: BuildRequest) -> Path:
        """Build the model and return its folder in ``request.out``. Raises :class:`CommandError`."""
        with self._stage(request) as workshop, self._stage(request) as staged:
            source, name = self._source(request, workshop)
            self._describe(request, source, staged)
            adapted = adapt(
                source,
                workshop / ADAPTED,
                self.progress.say,
                lambda graph: build_request.ranges(request, graph, build_request.MAX_BATCH),
            )
            graphs = request.changes.graphs(
                Graph.read(adapted),
                self._source_of_description(request, DESCRIPTION, self.models / request.model),
                workshop,
                way=suppression.way_for(request.target),
                tokenizer=self._source_of_description(request, TOKENIZER, staged),
            )
            trial = self._try(request, graphs)
            configuration = configure(request, graphs, self.models, self.progress.say, trial.warm_up)
            version = staged / VERSION
            version.mkdir()
            largest = configuration.final.max_batch_size
            built = self._make(request, graphs, version, configuration.ranges)
            accuracy = None
            if request.compare and trial.runner and (version / GRAPH).exists():
                with self.progress.step(f"{request.model}: comparing with its source"):
                    accuracy = self._accuracy(request, graphs, trial, largest, version)
                self.progress.say(f"{request.model}: {accuracy}")
                self._add_golden_data(request, graphs, trial, version)
            is_batch_made = configuration.final.HasField("dynamic_batching")
            by_record = configuration.final.max_batch_size > 0 and not is_batch_made
            quantized: Quantized | None = None
            if request.calibration and request.target == "cpu":
                with self.progress.step(f"{request.model}: comparing on {request.calibration}"):
                    quantized = self._compare_on_inputs(request, graphs, staged, by_record)
                self.progress.say((staged / REPORT).read_text())
            tolerance = request.wanted.tolerance
            if quantized is not None:
                tolerance = max(tolerance, int8.find_tolerance(version, by_record))
                configuration.final.parameters["tolerance"].string_value = f"{tolerance:g}"
            order: tuple[str, ...] = ()
            if request.measured:
                with self.progress.step(f"{request.model}: timing its engines"):
                    order = fastest_first(version, by_record, tolerance)
                self.progress.say(f"{request.model}: the fastest first: {', '.join(order)}")
            origin = manifest.SourceGraph(name=name, sha256=sha256(source))
            self._write_manifest(request, graphs, origin, built, accuracy, order, quantized, version)
            if not configuration.is_hand_written:
                (staged / "config.pbtxt").write_text(GENERATED_MARK + write_config(configuration.final))
            self._place(staged, request.out / request.model)
        return request.out / request.model

    def _source(self, request: BuildRequest, workshop: Path) -> tuple[Path, str]:
        """Return the graph, and its name for the manifest."""
        if isinstance(request.source, Path):
            return request.source, request.source.name
        if request.source:
            tool = part_of_tools("build.exporting", f"--source {request.source}, a model of PyTorch,")
            return tool.export(request.source, workshop / GRAPH, self.progress), request.source
        folder = self.models / request.model
        if not (folder / "recipe" / "recipe.py").is_file():
            raise CommandError(f"{folder} has no recipe: name an ONNX file or a hub id with --source.")
        tool = part_of_tools("prepare.demo", f"the recipe of {request.model}")
        artifact = tool.build_recipe(self.cache, folder, self.progress)
        return artifact / GRAPH, f"model/{request.model}/recipe, {artifact.name}"

    def _source_of_description(self, request: BuildRequest, name: str, folder: Path) -> Path:
        """Return the configuration's source: that of ``folder``, else the repository's own."""
        described_file, own_file = folder / name, request.out / request.model / name
        return own_file if own_file.is_file() and not described_file.is_file() else described_file

    def _make(
        self, request: BuildRequest, graphs: Graphs, version: Path, ranges: Mapping[str, Range]
    ) -> BuiltModel:
        with self.progress.step(f"{request.model}: building for {request.target}"):
            if request.target == "tensorrt":
                for size in build_request.fixed(graphs.prepared, ranges):
                    self.progress.say(f"{request.model}: the plan takes {size}; callers have to pad to it")
                return targets.tensorrt(graphs.prepared, version, request, ranges)
            if request.precision != "fp32":
                raise CommandError(f"--precision {request.precision} is for --target tensorrt.")
            return (targets.cpu if request.target == "cpu" else targets.onnxruntime)(graphs.served, version)

    def _try(self, request: BuildRequest, graphs: Graphs) -> Trial:
        """Run the graph on random inputs, to learn which sizes it takes."""
        # A graph that came with its suppression or masks inside is served unchanged: it takes no random
        # thresholds, and its rows for masks cannot be stacked.
        if (graphs.applied.nms, graphs.applied.masks) != (request.changes.nms, request.changes.masks):
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
        built: BuiltModel,
        accuracy: Accuracy | None,
        engines: tuple[str, ...],
        quantized: Quantized | None,
        version: Path,
    ) -> None:
        warnings = () if request.compare else (NOT_COMPARED,)
        for warning in warnings:
            self.progress.say(f"{request.model}: warning: {warning}")
        Manifest(
            model=request.model,
            target=request.target,
            source=source,
            tool=built.tool,
            precision=request.precision,
            changes=graphs.applied.names,
            gpu=built.gpu,
            profiles=built.profiles,
            strongly_typed=request.strongly_typed,
            version_compatible=request.version_compatible,
            hardware_compatibility=request.hardware_compatibility,
            engines=engines,
            seconds=built.seconds,
            built=manifest.now(),
            accuracy=accuracy,
            quantized=quantized,
            warnings=warnings,
        ).write(version)

    def _accuracy(
        self, request: BuildRequest, graphs: Graphs, trial: Trial, largest: int, version: Path
    ) -> Accuracy:
        """Compare on random inputs and, for a model with a recipe, on its client's samples.

        Suppression turns small differences into large ones, so the rows before it are compared, and the
        answers. For masks, the logits of all words are compared instead of the best ones.
        """
        with tempfile.TemporaryDirectory() as folder:
            served = plain = version / GRAPH
            if graphs.applied.nms:
                plain = suppression.remove_suppression(served, graphs.prepared, Path(folder) / GRAPH)
            elif graphs.applied.masks:
                plain = graphs.prepared.path
            ranges = build_request.ranges(request, graphs.prepared, build_request.MAX_BATCH)
            comparison = Comparison(graphs.prepared, max(1, largest), request.precision, ranges)
            accuracy = comparison.against(plain, trial.runner, trial.found)
            if request.source:
                return accuracy
            repository = Path(folder) / "repository"
            repository.mkdir()
            (repository / request.model).symlink_to(version.parent)
            # A plan's thresholds are not those of the samples, and its plugin does not run on a CPU.
            built = Graph.read(plain if request.target == "tensorrt" else served)
            runner = session(built.path, optimized=request.precision == "fp32")
            equal = count_equal_answers(
                HERE / "clients" / request.model,
                repository,
                InProcess(graphs.source, session(graphs.source.path, optimized=False)),
                InProcess(built, runner),
            )
        if request.precision == "fp32" and equal and equal[0] < equal[1]:
            raise CommandError(
                f"{request.model} as built answers {equal[1] - equal[0]} of {equal[1]} samples otherwise "
                "than its source does: leave out what changes the graph."
            )
        return accuracy.model_copy(update={"samples": equal})

    def _add_golden_data(self, request: BuildRequest, graphs: Graphs, trial: Trial, version: Path) -> None:
        """Write what the CPU target compares engines with: the client's samples.

        Random inputs do not show what a reduced precision does to real ones, so they count only where the
        team has named the precision.
        """
        if request.target != "cpu":
            return
        graph = Graph.read(version / GRAPH)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / request.model).symlink_to(version.parent)
            client = HERE / "clients" / request.model
            if request.source is None and samples.from_samples(
                graph, graphs.applied, client, Path(folder), version
            ):
                return
        # Random pictures have no objects, and random texts no masks. A team's own inputs are better.
        is_named = request.wanted.precision != "auto" and not request.calibration
        if is_named and not (graphs.applied.nms or graphs.applied.masks):
            samples.from_random_inputs(graph, trial.found, version)

    def _compare_on_inputs(
        self, request: BuildRequest, graphs: Graphs, staged: Path, by_record: bool
    ) -> Quantized | None:
        """Write the report on each engine's accuracy on a team's inputs; make the graph in int8 if asked."""
        version = staged / VERSION
        graph, client = Graph.read(version / GRAPH), HERE / "clients" / request.model
        folder, kinds = cast(Path, request.calibration), samples.kinds(graph, graphs.applied)
        if any(folder.glob("*.np[yz]")) or request.source is not None or not client.is_dir():
            named = list(targets.records(graph, folder))
            if not (folder / int8.LABELS).is_file():
                kinds = {}, ""
        else:
            with tempfile.TemporaryDirectory() as repository:
                (Path(repository) / request.model).symlink_to(staged)
                named = samples.client_feeds(graph, client, Path(repository), folder)
        if not named:
            raise CommandError(f"{folder} has no pictures, no texts.txt, and no *.npz or *.npy.")
        feeds = [feed for _, feed in named]
        try:
            known = samples.golden(graph, feeds, *kinds)
            if request.wanted.precision == "int8":
                lowered = [(name, int8.with_low_threshold(folder, feed)) for name, feed in named]
                judged = samples.golden(graph, [feed for _, feed in lowered], *kinds)
        except Exception as error:  # ONNX Runtime's own classes
            raise CommandError(f"the model does not take an input in {folder}: {error}.") from error
        if not (version / GOLDEN).is_file():
            samples.from_records(graph, feeds, version)
        quantized, notes = None, []
        if request.wanted.precision == "int8":
            inputs = int8.read_inputs(folder, lowered, judged, staged / "labels.txt")
            has_labels = (inputs[0].label, inputs[0].boxes) != (None, None)
            measure = int8.Measure(*kinds, has_labels=has_labels)
            quantized, answers = int8.quantize(version, inputs, measure, request.max_drop)
            quantized = quantized.model_copy(update={"data": folder.name})
            picture = int8.draw_differences(folder, staged, inputs, answers, measure)
            notes = int8.describe(quantized, inputs, answers, measure, picture)
        (staged / REPORT).write_text(write_report(known, version, by_record, notes))
        return quantized

    def _describe(self, request: BuildRequest, source: Path, staged: Path) -> None:
        """Copy labels, vocabulary and preprocessing, if the recipe or the team has them."""
        if request.source is None:
            for path in source.parent.iterdir():
                if path.name != GRAPH:
                    link(path, staged / path.name)
        folder = self.models / request.model
        for path in descriptions(folder) if folder.is_dir() else ():
            shutil.copy(path, staged / path.name)
        if request.changes.nms and request.target == "tensorrt":
            suppression.describe(staged)

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
