"""Write the files of a version folder for each target, in the precision asked for.

Strongly typed TensorRT needs the types in the graph itself: TensorRT 11 requires it, and TensorRT 10 accepts
it with ``--stronglyTyped``. ONNX Runtime converts, so the effect on the answers can be
measured without a GPU.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import onnx

from sm.errors import CommandError
from sm.repository.manifest import Precision, Target, Tool
from trireme_extensions.convert import build_request, onnx_cpu
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.onnx_cpu.engines import WEIGHTS
from trireme_extensions.convert.onnx_graph import Graph
from trireme_extensions.convert.plans import KEPT, LOG, PLAN, Build, TensorRTPlan, build_plan

GRAPH = "model.onnx"
#: The Python model that runs graphs in Triton's python backend, and the modules that it imports.
RUNNER = tuple(
    Path(onnx_cpu.__file__).with_name(name)
    for name in ("model.py", "batching.py", "request_token.py", "engines.py")
)


def place_on_cpu(graph: Graph, version_folder: Path) -> None:
    """Put a graph and the Python model that runs it into a version folder.

    The weights get a file of their own, which the engines map: a model's processes share its pages, and do
    not keep them once they have weights in their own layout.
    """
    if graph.data:
        copy_graph(graph, version_folder)
    else:
        loaded, placed = onnx.load(graph.path), version_folder / GRAPH
        placed.unlink(missing_ok=True)  # may be a link to a recipe's graph, which must stay as it is
        onnx.save_model(loaded, placed, save_as_external_data=True, location=WEIGHTS)
        if (version_folder / WEIGHTS).exists():
            shutil.copymode(placed, version_folder / WEIGHTS)
    for file in RUNNER:
        shutil.copy(file, version_folder / file.name)


def copy_graph(graph: Graph, folder: Path) -> None:
    """Copy a graph with its weight files into a version folder."""
    for path, name in ((graph.path, GRAPH), *((path, path.name) for path in graph.data)):
        if path != folder / name:
            link(path, folder / name)


def descriptions(model: Path) -> Iterator[Path]:
    """Return the files beside ``config.pbtxt`` that clients read."""
    return (
        path
        for path in sorted(model.iterdir())
        if path.is_file() and path.suffix in (".json", ".npz", ".txt")
    )


def link(path: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system has no hard links."""
    try:
        # os.link() would link to a link, whose target ONNX Runtime refuses as outside of the graph's folder.
        os.link(path.resolve(), target)
    except OSError:
        shutil.copy(path, target)


def convert_precision(graph: Graph, precision: Precision, out: Path) -> Graph:
    """Convert a graph to ``out`` and return it, or the graph itself if nothing changes.

    Inputs and outputs keep their types.
    """
    if precision == "fp16":
        _half(graph.path, out)
        return Graph.read(out)
    if precision == "bf16" and not _has_bfloat16(graph.path):
        raise CommandError(
            f"{graph.path} has no bfloat16 in it, and strongly typed TensorRT takes types from the graph: "
            "export it from PyTorch in bfloat16, or with TensorRT 10 build with --no-strongly-typed."
        )
    return graph


def _half(path: Path, out: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        # It warns of each weight below the range of 16 bits; the comparison shows whether that matters.
        warnings.simplefilter("ignore")
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), out)


def _has_bfloat16(path: Path) -> bool:
    graph = onnx.load(path, load_external_data=False).graph
    return any(weight.data_type == onnx.TensorProto.BFLOAT16 for weight in graph.initializer)


def for_onnx_runtime(graph: Graph, folder: Path, target: Target) -> Build:
    """Write the graph for ONNX Runtime: with the Python model that runs it, or for Triton's own backend.

    The version is that of the library with which the graph is compared.
    """
    (place_on_cpu if target == "cpu" else copy_graph)(graph, folder)
    return Build(Tool(name="onnxruntime", version=version("onnxruntime")))


def tensorrt(
    graph: Graph, typed: Graph, folder: Path, request: BuildRequest, ranges: Mapping[str, Range]
) -> Build:
    """Write the plan of ``graph`` with the types of ``typed``, from which a start can build it again."""
    profiles = build_request.profiles(graph, ranges)
    copy_graph(typed, folder)
    plan = TensorRTPlan(
        model=request.model,
        graph=folder / GRAPH,
        file=folder / PLAN,
        log=request.out / f"{request.model}.{LOG}",  # it stays there if the build fails
        profiles=profiles,
        workspace=request.workspace,
        timing_cache=request.timing_cache,
        **{name: getattr(request, name) for name in KEPT},
    )
    built = build_plan(plan)
    plan.log.replace(folder / LOG)
    return built
