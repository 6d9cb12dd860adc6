"""The configuration of a built model: the graph's own, under what a person wrote; the difference shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.errors import StartError
from sm.tools.build import build_request, model_config
from sm.tools.build.build_request import BuildRequest, Range
from sm.tools.build.changes import Graphs, retold
from sm.tools.build.onnx_graph import Graph

#: A configuration that begins with this line is ours to write anew; one without it is somebody's work.
OURS = "# Written by sm build-model. Without this line it is yours: it will be kept as it is.\n"


@dataclass(frozen=True)
class Configuration:
    """``final`` is the ``ModelConfig``; ``kept`` where it is the repository's own, not to be written."""

    final: Any
    kept: bool
    #: By the name of each free size that is known.
    ranges: Mapping[str, Range]


def configure(
    wanted: BuildRequest, graphs: Graphs, models: Path, say: Callable[[str], None]
) -> Configuration:
    """Made for ``wanted``; :class:`StartError` where what a person wrote does not fit graph or order."""
    graph = graphs.served
    own = wanted.out / wanted.model / "config.pbtxt"
    if own.is_file() and not own.read_text(errors="replace").startswith(OURS):
        return _kept(wanted, graph, own, say)
    path = models / wanted.model / "config.pbtxt"
    if not path.is_file():
        ranges = build_request.ranges(wanted, graph, build_request.MAX_BATCH)
        return Configuration(_generated(wanted, graph, ranges), False, ranges)
    written = retold(model_config.read(path), wanted.changes, graph)
    ranges = build_request.ranges(wanted, graph, written.max_batch_size or build_request.MAX_BATCH)
    generated = _generated(wanted, graph, ranges)
    if generated.max_batch_size and (wanted.batch or wanted.shapes):
        written.max_batch_size = generated.max_batch_size  # the order's own word
    final = _of_target(wanted, graph, model_config.merged(generated, written))
    return _checked(Configuration(final, False, ranges), graph, generated, path, say)


def _kept(wanted: BuildRequest, graph: Graph, path: Path, say: Callable[[str], None]) -> Configuration:
    final = model_config.parse(path)
    backend = model_config.backend(wanted.target)
    if final.backend != backend:
        raise StartError(
            f"{path} is not sm build-model's to change, and has the backend {final.backend!r} where "
            f"{wanted.target} wants {backend!r}: change it there, or build with another --out."
        )
    ranges = build_request.ranges(wanted, graph, final.max_batch_size or build_request.MAX_BATCH)
    return _checked(Configuration(final, True, ranges), graph, _generated(wanted, graph, ranges), path, say)


def _checked(
    made: Configuration, graph: Graph, generated: Any, path: Path, say: Callable[[str], None]
) -> Configuration:
    model_config.check(made.final, graph.path, path)
    if made.final.max_batch_size > generated.max_batch_size:
        raise StartError(
            f"{path} has max_batch_size {made.final.max_batch_size}, which is more than the "
            f"{generated.max_batch_size} asked for: change it there, or ask for more with --batch."
        )
    for line in model_config.difference(generated, made.final, str(path)):
        say(line)
    return made


def _generated(wanted: BuildRequest, graph: Graph, ranges: Mapping[str, Range]) -> Any:
    _, best, largest = ranges[str(graph.inputs[0].sizes[0])] if graph.batched else (1, 1, 1)
    preferred = best if wanted.target == "tensorrt" and best < largest else 0
    return _of_target(wanted, graph, model_config.of_graph(graph, wanted.model, largest, preferred, ranges))


def _of_target(wanted: BuildRequest, graph: Graph, said: Any) -> Any:
    if wanted.target == "cpu":
        return model_config.for_processors(said, graph)
    return model_config.for_target(said, wanted.target)
