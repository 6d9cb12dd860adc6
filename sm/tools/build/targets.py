"""What each target makes of a graph: the files of a version folder and what the manifest says of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sm import hardware
from sm.repository.manifest import GpuPart, Profile, Tool, of
from sm.tensorrt import plans
from sm.tensorrt.plans import LOG, PLAN, Plan
from sm.tools.build import build_request
from sm.tools.build.build_request import BuildRequest, Range
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.precision import converted
from sm.tools.build.repository_assembly import GRAPH, copy_runner, link


@dataclass(frozen=True)
class BuiltModel:
    """For the manifest: what built the artifact, and for what."""

    tool: Tool
    gpu: GpuPart | None = None
    profiles: tuple[Profile, ...] = ()
    seconds: float | None = None


def cpu(graph: Graph, folder: Path) -> BuiltModel:
    """The graph with the python-backend model that runs it."""
    put(graph, folder)
    copy_runner(folder)
    return BuiltModel(Tool(name="onnxruntime", version=version("onnxruntime")))


def onnxruntime(graph: Graph, folder: Path) -> BuiltModel:
    """The graph alone, for Triton's own backend; the version is of the library that it was compared with."""
    put(graph, folder)
    return BuiltModel(Tool(name="onnxruntime", version=version("onnxruntime")))


def tensorrt(graph: Graph, folder: Path, wanted: BuildRequest, known: Mapping[str, Range]) -> BuiltModel:
    """The plan with the graph that it was built of, from which a start can build it again."""
    profiles = build_request.profiles(graph, known)
    weak = not wanted.strongly_typed and wanted.precision != "int8"
    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        precise = Path(workshop) / GRAPH
        typed = graph if weak else converted(graph, wanted.precision, wanted.calibration, precise)
        # Last, since it stays in float32 and no conversion knows the plugin.
        put(wanted.changes.suppressed(typed, Path(workshop), plugin=True), folder)
    started = time.monotonic()
    made = Plan(
        model=wanted.model,
        graph=folder / GRAPH,
        file=folder / PLAN,
        log=wanted.out / f"{wanted.model}.{LOG}",  # it stays there if the build fails
        profiles=profiles,
        precision=wanted.precision,
        workspace=wanted.workspace,
        timing_cache=wanted.timing_cache,
        strongly_typed=wanted.strongly_typed,
    )
    version = plans.build(made)
    seconds = round(time.monotonic() - started, 1)
    made.log.replace(folder / LOG)
    gpus = hardware.gpus()
    return BuiltModel(
        Tool(name="TensorRT", version=version), of(gpus[0]) if gpus else None, profiles, seconds
    )


def put(graph: Graph, folder: Path) -> None:
    """A graph into a version folder, with its weights' files."""
    link(graph.path, folder / GRAPH)
    for path in graph.data:
        link(path, folder / path.name)
