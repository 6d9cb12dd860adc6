"""Build a model at a desk: from a recipe or PyTorch, with a changed graph, or for other engines on a CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

from sm.errors import CommandError
from sm.repository.manifest import Accuracy
from sm.settings import HERE
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.model_builder import VERSION, MeasuredEngines, ModelBuilder, Trial
from trireme_extensions.convert.onnx_cpu.engines import GOLDEN
from trireme_extensions.convert.onnx_graph import Graph, Graphs
from trireme_extensions.convert.targets import GRAPH, link
from trireme_tools.build import (
    calibration,
    exporting,
    golden_data,
    int8,
    int8_report,
    right_answers,
    samples,
    suppression,
)
from trireme_tools.build.accuracy_report import REPORT, fastest_first, write_report
from trireme_tools.build.changes import DESCRIPTION, TOKENIZER, GraphChanges
from trireme_tools.build.measure import Measure
from trireme_tools.build.samples import InProcess, count_equal_answers
from trireme_tools.prepare import demo
from trireme_tools.progress import Progress

#: A plan's source in int8.
QUANTIZED = "quantized.onnx"


class DeskBuilder(ModelBuilder):
    """Builds one :class:`BuildRequest`. ``models`` has recipes and configurations."""

    progress: Progress

    def find_source(self, request: BuildRequest, workshop: Path) -> tuple[Path, str]:
        """Return the graph, and its name for the manifest."""
        if isinstance(request.source, Path):
            return super().find_source(request, workshop)
        if request.source:
            return exporting.export(request.source, workshop / GRAPH, self.progress), request.source
        artifact = demo.build_recipe(self.cache, self.models / request.model, self.progress)
        return artifact / GRAPH, f"model/{request.model}/recipe, {artifact.name}"

    def describe(self, request: BuildRequest, source: Path, staged: Path) -> None:
        """Copy labels, vocabulary and preprocessing, if the recipe or the team has them."""
        if request.source is None:
            for path in source.parent.iterdir():
                if path.name != GRAPH:
                    link(path, staged / path.name)
        super().describe(request, source, staged)
        if "nms" in request.changes and request.target == "tensorrt":
            suppression.describe(staged)

    def change(self, request: BuildRequest, graph: Graph, workshop: Path, staged: Path) -> Graphs:
        """Change the graph as it was asked for."""
        return GraphChanges.of(request.changes).graphs(
            graph,
            self._find_description(request, DESCRIPTION, self.models / request.model),
            workshop,
            way=suppression.way_for(request.target),
            tokenizer=self._find_description(request, TOKENIZER, staged),
        )

    def _find_description(self, request: BuildRequest, name: str, folder: Path) -> Path:
        """Return a file that describes the model: that of ``folder``, else the repository's own."""
        described_file, own_file = folder / name, request.out / request.model / name
        return own_file if own_file.is_file() and not described_file.is_file() else described_file

    def convert(self, request: BuildRequest, graph: Graph, workshop: Path) -> Graph:
        """Return the graph of a plan, with the types and the changes that were asked for."""
        if (request.calibration is None) == (request.precision == "int8"):
            raise CommandError(
                "--precision int8 and --calibration FOLDER need each other: give both or neither."
            )
        if request.calibration:
            feeds = [feed for _, feed in calibration.records(graph, request.calibration)]
            calibration.quantize(graph.path, feeds, workshop / QUANTIZED)
            typed = Graph.read(workshop / QUANTIZED)
        else:
            typed = super().convert(request, graph, workshop)
        # Last, as it stays in float32 and no converter knows the plugin.
        way = suppression.way_for("tensorrt")
        return GraphChanges.of(request.changes).suppress_boxes(typed, workshop, way)

    def compare(
        self, request: BuildRequest, graphs: Graphs, trial: Trial, built: Path, largest: int
    ) -> Accuracy:
        """Compare on random inputs and, for a model with a recipe, on its client's samples.

        Suppression turns small differences into large ones, so the rows before it are compared, and the
        answers. For masks, the logits of all words are compared instead of the best ones.
        """
        with tempfile.TemporaryDirectory() as folder:
            plain = built
            if "nms" in graphs.applied:
                plain = suppression.remove_suppression(built, graphs.prepared, Path(folder) / GRAPH)
            elif "masks" in graphs.applied:
                plain = graphs.prepared.path
            accuracy = super().compare(request, graphs, trial, plain, largest)
            if request.source:
                return accuracy
            repository = Path(folder) / "repository"
            repository.mkdir()
            (repository / request.model).symlink_to(built.parent.parent)
            # A plan's thresholds are not those of the samples, and its plugin does not run on a CPU.
            served = Graph.read(plain if request.target == "tensorrt" else built)
            runner = session(served.path, optimized=request.precision == "fp32")
            equal = count_equal_answers(
                HERE / "clients" / request.model,
                repository,
                InProcess(graphs.source, session(graphs.source.path, optimized=False)),
                InProcess(served, runner),
            )
        if request.precision == "fp32" and equal and equal[0] < equal[1]:
            raise CommandError(
                f"{request.model} as built answers {equal[1] - equal[0]} of {equal[1]} samples otherwise "
                "than its source does: leave out what changes the graph."
            )
        return accuracy.model_copy(update={"samples": equal})

    def _add_golden_data(self, request: BuildRequest, graphs: Graphs, trial: Trial, version: Path) -> None:
        """Write what the CPU target compares engines with: the client's samples, if it has some.

        Random inputs do not show what a reduced precision does to real ones, so they count only where the
        team has named the precision.
        """
        if request.target != "cpu" or not (request.compare and trial.runner):
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / request.model).symlink_to(version.parent)
            graph, client = Graph.read(version / GRAPH), HERE / "clients" / request.model
            if request.source is None and samples.from_samples(
                graph, graphs.applied, client, Path(folder), version
            ):
                return
        # Random pictures have no objects, and random texts no masks. A team's own inputs are better.
        is_meant = request.wanted.precision != "auto" and not request.calibration
        if is_meant and not {"nms", "masks"} & {*graphs.applied}:
            golden_data.from_random_inputs(Graph.read(version / GRAPH), trial.found, version)

    def measure(
        self, request: BuildRequest, graphs: Graphs, trial: Trial, config: Any, staged: Path
    ) -> MeasuredEngines:
        """Write golden data; compare the engines on a team's inputs and time them, as it was asked for."""
        version = staged / VERSION
        self._add_golden_data(request, graphs, trial, version)
        by_record = config.max_batch_size > 0 and not config.HasField("dynamic_batching")
        quantized: dict[str, Any] | None = None
        if request.calibration and request.target == "cpu":
            with self.progress.step(f"{request.model}: comparing on {request.calibration}"):
                quantized = self._compare_on_inputs(request, graphs, staged, by_record)
            self.progress.say((staged / REPORT).read_text())
        tolerance = request.wanted.tolerance
        if quantized is not None:
            tolerance = max(tolerance, int8.find_tolerance(version, by_record))
            config.parameters["tolerance"].string_value = f"{tolerance:g}"
        if not request.measured:
            return MeasuredEngines((), quantized)
        with self.progress.step(f"{request.model}: timing its engines"):
            order = fastest_first(version, by_record, tolerance)
        self.progress.say(f"{request.model}: the fastest first: {', '.join(order)}")
        return MeasuredEngines(order, quantized)

    def _compare_on_inputs(
        self, request: BuildRequest, graphs: Graphs, staged: Path, by_record: bool
    ) -> dict[str, Any] | None:
        """Write the report on each engine's accuracy on a team's inputs; make the graph in int8 if asked."""
        version = staged / VERSION
        graph, client = Graph.read(version / GRAPH), HERE / "clients" / request.model
        folder, kinds = cast(Path, request.calibration), samples.kinds(graph, graphs.applied)
        if any(folder.glob("*.np[yz]")) or request.source is not None or not client.is_dir():
            named = list(calibration.records(graph, folder))
            if not (folder / right_answers.LABELS).is_file():
                kinds = {}, ""
        else:
            with tempfile.TemporaryDirectory() as repository:
                (Path(repository) / request.model).symlink_to(staged)
                named = samples.client_feeds(graph, client, Path(repository), folder)
        if not named:
            raise CommandError(f"{folder} has no pictures, no texts.txt, and no *.npz or *.npy.")
        feeds = [feed for _, feed in named]
        try:
            known = golden_data.golden(graph, feeds, *kinds)
            if request.wanted.precision == "int8":
                lowered = [(name, right_answers.with_low_threshold(folder, feed)) for name, feed in named]
                judged = golden_data.golden(graph, [feed for _, feed in lowered], *kinds)
        except Exception as error:  # ONNX Runtime's own classes
            raise CommandError(f"the model does not take an input in {folder}: {error}.") from error
        if not (version / GOLDEN).is_file():
            samples.from_records(graph, feeds, version)
        quantized, notes = None, []
        if request.wanted.precision == "int8":
            inputs = right_answers.read_inputs(folder, lowered, judged, staged / "labels.txt")
            has_labels = inputs[0].label is not None or inputs[0].boxes is not None
            measure = Measure(*kinds, has_labels=has_labels)
            quantized, answers = int8.quantize(version, inputs, measure, request.max_drop)
            quantized = quantized.model_copy(update={"data": folder.name})
            picture = int8_report.draw_differences(folder, staged, inputs, answers, measure)
            notes = int8_report.describe(quantized, inputs, answers, measure, picture)
        (staged / REPORT).write_text(write_report(known, version, by_record, notes))
        return quantized.model_dump() if quantized else None
