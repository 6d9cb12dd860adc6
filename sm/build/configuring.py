"""The configuration of a built model: the graph's own, under what a person wrote; the difference shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.build import config, order
from sm.build.changes import Graphs, retold
from sm.build.graph import Graph
from sm.build.order import Order, Range
from sm.errors import StartError

#: A configuration that begins with this line is ours to write anew; one without it is somebody's work.
OURS = "# Written by sm build-model. Without this line it is yours: it will be kept as it is.\n"


@dataclass(frozen=True)
class Configuration:
    """``final`` is the ``ModelConfig``; ``kept`` where it is the repository's own, not to be written."""

    final: Any
    kept: bool
    #: By the name of each free size that is known.
    ranges: Mapping[str, Range]


def configure(wanted: Order, graphs: Graphs, models: Path, say: Callable[[str], None]) -> Configuration:
    """Made for ``wanted``; :class:`StartError` where what a person wrote does not fit graph or order."""
    graph = graphs.served
    own = wanted.out / wanted.model / "config.pbtxt"
    if own.is_file() and not own.read_text(errors="replace").startswith(OURS):
        return _kept(wanted, graph, own, say)
    path = models / wanted.model / "config.pbtxt"
    if not path.is_file():
        ranges = order.ranges(wanted, graph, order.LARGEST)
        return Configuration(_generated(wanted, graph, ranges), False, ranges)
    written = retold(config.read(path), wanted.changes, graph)
    ranges = order.ranges(wanted, graph, written.max_batch_size or order.LARGEST)
    generated = _generated(wanted, graph, ranges)
    if generated.max_batch_size and (wanted.batch or wanted.shapes):
        written.max_batch_size = generated.max_batch_size  # the order's own word
    final = _of_target(wanted, graph, config.merged(generated, written))
    return _checked(Configuration(final, False, ranges), graph, generated, path, say)


def _kept(wanted: Order, graph: Graph, path: Path, say: Callable[[str], None]) -> Configuration:
    final = config.parse(path)
    backend = config.backend(wanted.target)
    if final.backend != backend:
        raise StartError(
            f"{path} is not sm build-model's to change, and has the backend {final.backend!r} where "
            f"{wanted.target} wants {backend!r}: change it there, or build with another --out."
        )
    ranges = order.ranges(wanted, graph, final.max_batch_size or order.LARGEST)
    return _checked(Configuration(final, True, ranges), graph, _generated(wanted, graph, ranges), path, say)


def _checked(
    made: Configuration, graph: Graph, generated: Any, path: Path, say: Callable[[str], None]
) -> Configuration:
    config.check(made.final, graph.path, path)
    if made.final.max_batch_size > generated.max_batch_size:
        raise StartError(
            f"{path} has max_batch_size {made.final.max_batch_size}, which is more than the "
            f"{generated.max_batch_size} asked for: change it there, or ask for more with --batch."
        )
    for line in config.difference(generated, made.final, str(path)):
        say(line)
    return made


def _generated(wanted: Order, graph: Graph, ranges: Mapping[str, Range]) -> Any:
    _, best, largest = ranges[str(graph.inputs[0].sizes[0])] if graph.batched else (1, 1, 1)
    preferred = best if wanted.target == "tensorrt" and best < largest else 0
    return _of_target(wanted, graph, config.of_graph(graph, wanted.model, largest, preferred, ranges))


def _of_target(wanted: Order, graph: Graph, said: Any) -> Any:
    if wanted.target == "cpu":
        return config.for_processors(said, graph)
    return config.for_target(said, wanted.target)
