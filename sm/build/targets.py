"""What each target makes of a graph: the files of a version folder and what the manifest says of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sm.build.graph import Graph
from sm.build.repository import GRAPH, RUNNER, link
from sm.manifest import GpuPart, Profile, Tool


@dataclass(frozen=True)
class Made:
    """For the manifest: what built the artifact, and for what."""

    tool: Tool
    gpu: GpuPart | None = None
    profiles: tuple[Profile, ...] = ()


#: From a graph and an empty version folder.
Make = Callable[[Graph, Path], Made]


def cpu(graph: Graph, folder: Path) -> Made:
    """The graph with the python-backend model that runs it."""
    _graph(graph, folder)
    shutil.copy(RUNNER, folder / "model.py")
    return Made(Tool(name="onnxruntime", version=version("onnxruntime")))


def onnxruntime(graph: Graph, folder: Path) -> Made:
    """The graph alone, for Triton's own backend; the version is of the library that it was compared with."""
    _graph(graph, folder)
    return Made(Tool(name="onnxruntime", version=version("onnxruntime")))


def _graph(graph: Graph, folder: Path) -> None:
    link(graph.path, folder / GRAPH)
    for path in graph.data:
        link(path, folder / path.name)
