"""Write the files of a version folder for each target, and describe them for the manifest."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sm import hardware
from sm.commands.build import build_request
from sm.commands.build.build_request import BuildRequest, Range
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.precision import convert_precision
from sm.commands.build.repository_assembly import GRAPH, copy_graph, place_on_cpu
from sm.repository.manifest import GpuPart, Profile, Tool, gpu_part
from sm.repository.plans import LOG, PLAN, Plan, build_plan
from sm.settings import PACKAGE

#: The torch target's program.
PROGRAM = "model.pt2"
#: The model that runs it in Triton's python backend, and what it imports.
TORCH_RUNNER = {
    "model.py": PACKAGE / "triton" / "torch_program.py",
    "request_token.py": PACKAGE / "triton" / "onnx_cpu" / "request_token.py",
}


@dataclass(frozen=True)
class BuiltModel:
    """What built the artifact, and for which hardware; for the manifest."""

    tool: Tool
    gpu: GpuPart | None = None
    profiles: tuple[Profile, ...] = ()
    seconds: float | None = None


def cpu(graph: Graph, folder: Path) -> BuiltModel:
    """Write the graph and the Python model that runs it."""
    place_on_cpu(graph, folder)
    return BuiltModel(Tool(name="onnxruntime", version=version("onnxruntime")))


def onnxruntime(graph: Graph, folder: Path) -> BuiltModel:
    """Write the graph for Triton's own backend. The version is that of the library that it was
    compared with.
    """
    copy_graph(graph, folder)
    return BuiltModel(Tool(name="onnxruntime", version=version("onnxruntime")))


def tensorrt(graph: Graph, folder: Path, request: BuildRequest, ranges: Mapping[str, Range]) -> BuiltModel:
    """Write the plan, and the graph from which a start can build it again."""
    profiles = build_request.profiles(graph, ranges)
    weak = not request.strongly_typed and request.precision != "int8"
    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        precise = Path(workshop) / GRAPH
        typed = graph if weak else convert_precision(graph, request.precision, request.calibration, precise)
        # Last, as it stays in float32 and no converter knows the plugin.
        copy_graph(request.changes.suppress_boxes(typed, Path(workshop), plugin=True), folder)
    started = time.monotonic()
    plan = Plan(
        model=request.model,
        graph=folder / GRAPH,
        file=folder / PLAN,
        log=request.out / f"{request.model}.{LOG}",  # it stays there if the build fails
        profiles=profiles,
        precision=request.precision,
        workspace=request.workspace,
        timing_cache=request.timing_cache,
        strongly_typed=request.strongly_typed,
    )
    version = build_plan(plan)
    seconds = round(time.monotonic() - started, 1)
    plan.log.replace(folder / LOG)
    gpus = hardware.gpus()
    return BuiltModel(
        Tool(name="TensorRT", version=version), gpu_part(gpus[0]) if gpus else None, profiles, seconds
    )


def torch(graph: Graph, folder: Path, request: BuildRequest, largest: int) -> BuiltModel:
    """Write the graph as a PyTorch program, in the request's precision, and the Python model that runs it."""
    from sm.commands.build.torch_graph import convert

    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        precise = Path(workshop) / GRAPH
        typed = convert_precision(graph, request.precision, request.calibration, precise)
        version = convert(typed, folder / PROGRAM, largest)
    for name, file in TORCH_RUNNER.items():
        shutil.copy(file, folder / name)
    return BuiltModel(Tool(name="torch", version=version))
