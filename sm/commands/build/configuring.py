"""Merge a built model's configuration from the graph and a hand-written file, and show the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm.commands.build import build_request, model_config
from sm.commands.build.build_request import BuildRequest, Range
from sm.commands.build.changes import Graphs, adapt_config
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.random_inputs import Sizes
from sm.errors import CommandError

#: A configuration that begins with this line may be overwritten; one without it is hand-written.
GENERATED_MARK = "# Written by sm build-model. Without this line it is yours: it will be kept as it is.\n"


@dataclass(frozen=True)
class Configuration:
    """``final`` is the ``ModelConfig``. ``is_hand_written``: it is the user's and must not be written."""

    final: Any
    is_hand_written: bool
    #: The known ranges, by the names of free sizes.
    ranges: Mapping[str, Range]


@dataclass(frozen=True)
class WarmUp:
    """The first, slow call that Triton makes before it is ready."""

    sizes: Sizes = field(default_factory=dict)
    #: False: no sizes are known at which the graph answers.
    possible: bool = True


def configure(
    request: BuildRequest, graphs: Graphs, models: Path, say: Callable[[str], None], warm_up: WarmUp
) -> Configuration:
    """Configure for the request. Raises :class:`CommandError` if a hand-written file does not fit it."""
    graph = graphs.served
    own_config = request.out / request.model / "config.pbtxt"
    if own_config.is_file() and not own_config.read_text(errors="replace").startswith(GENERATED_MARK):
        return _use_existing(request, graph, own_config, say, warm_up)
    path = models / request.model / "config.pbtxt"
    if not path.is_file():
        ranges = build_request.ranges(request, graph, build_request.MAX_BATCH)
        return Configuration(_generate(request, graph, ranges, warm_up), False, ranges)
    written = adapt_config(model_config.read(path), request.changes, graph)
    ranges = build_request.ranges(request, graph, written.max_batch_size or build_request.MAX_BATCH)
    generated = _generate(request, graph, ranges, warm_up)
    if generated.max_batch_size and (request.batch or request.shapes):
        written.max_batch_size = generated.max_batch_size  # the request overrides the file
    final = _adapt_to_target(request, graph, model_config.merge(generated, written))
    return _check(Configuration(final, False, ranges), graph, generated, path, say)


def _use_existing(
    request: BuildRequest, graph: Graph, path: Path, say: Callable[[str], None], warm_up: WarmUp
) -> Configuration:
    final = model_config.parse(path)
    backend = model_config.backend(request.target)
    if final.backend != backend:
        raise CommandError(
            f"{path} was not written by sm build-model and has the backend {final.backend!r} where "
            f"{request.target} wants {backend!r}: change it there, or build with another --out."
        )
    ranges = build_request.ranges(request, graph, final.max_batch_size or build_request.MAX_BATCH)
    generated = _generate(request, graph, ranges, warm_up)
    return _check(Configuration(final, True, ranges), graph, generated, path, say)


def _check(
    configuration: Configuration, graph: Graph, generated: Any, path: Path, say: Callable[[str], None]
) -> Configuration:
    model_config.check(configuration.final, graph.path, path)
    if configuration.final.max_batch_size > generated.max_batch_size:
        raise CommandError(
            f"{path} has max_batch_size {configuration.final.max_batch_size}, which is more than the "
            f"{generated.max_batch_size} asked for: change it there, or ask for more with --batch."
        )
    for line in model_config.difference(generated, configuration.final, str(path)):
        say(line)
    return configuration


def _generate(request: BuildRequest, graph: Graph, ranges: Mapping[str, Range], warm_up: WarmUp) -> Any:
    _, best, largest = ranges[str(graph.inputs[0].sizes[0])] if graph.batched else (1, 1, 1)
    preferred = best if request.target == "tensorrt" and best < largest else 0
    known = {name: (size, size, size) for name, size in warm_up.sizes.items()} | dict(ranges)
    config = model_config.from_graph(graph, request.model, largest, preferred, known)
    if not warm_up.possible:
        config.ClearField("model_warmup")
    return _adapt_to_target(request, graph, config)


def _adapt_to_target(request: BuildRequest, graph: Graph, config: Any) -> Any:
    if request.target == "cpu":
        for name, value in request.wanted.parameters().items():
            config.parameters[name].string_value = value
        return model_config.for_cpu(config, graph)
    return model_config.for_target(config, request.target)
