"""Write the golden data of a graph: inputs, and the outputs of ONNX Runtime in fp32 for them.

At load the model compares other engines and precisions with them: see :mod:`sm.triton.onnx_cpu.engines`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.commands.build.changes import Changes
from sm.commands.build.graph_runner import Runner, session
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.random_inputs import Feed, RandomInputs, Sizes
from sm.commands.build.samples import InProcess, answers
from sm.commands.build.size_search import SEED
from sm.plugins.loading import ClientSource
from sm.triton.onnx_cpu.engines import GOLDEN, Golden

#: Inputs in the file; each adds to the time of the choice at a cold start.
MAX_FEEDS = 8


class Recorder:
    """Runs a graph, and keeps what went in."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.feeds: list[Feed] = []

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        if not any(_are_equal(input_feed, feed) for feed in self.feeds):
            self.feeds.append(input_feed)
        return self.runner.run(output_names, input_feed)


def from_samples(graph: Graph, applied: Changes, client: Path, repository: Path, out: Path) -> bool:
    """Write the golden data from the samples of a client; False if it has none.

    Args:
        graph: The graph as it is served.
        applied: The changes that were made in it, which say what its outputs are.
        client: The client's folder.
        repository: Has the model's folder with its labels or vocabulary.
        out: The version folder.
    """
    if not (client / "client.py").is_file() or not (client / "sample").is_dir():
        return False
    feeds = client_feeds(graph, client, repository)[:MAX_FEEDS]
    return _write(graph, feeds, *kinds(graph, applied), out)


def client_feeds(graph: Graph, client: Path, repository: Path, samples: Path | None = None) -> list[Feed]:
    """Return what a client makes of its samples, or of the pictures and ``texts.txt`` in ``samples``."""
    recorder = Recorder(session(graph.path))
    source = ClientSource(client.name, client / "client.py")
    for _ in answers(source, repository, InProcess(graph, recorder), samples):
        pass
    return recorder.feeds


def from_records(graph: Graph, feeds: Sequence[Feed], out: Path) -> bool:
    """Write the golden data from a team's own inputs; False for a graph that takes texts."""
    return _write(graph, feeds[:MAX_FEEDS], {}, "", out)


def from_random_inputs(graph: Graph, sizes: Sequence[Sizes], out: Path) -> bool:
    """Write the golden data from random inputs of some sizes; False for a graph that takes texts."""
    inputs = RandomInputs(graph, SEED)
    feeds = [inputs.feed(each) for each in sizes[:MAX_FEEDS]]
    return _write(graph, feeds, {}, "", out)


def _write(graph: Graph, feeds: Sequence[Feed], kinds: Mapping[str, str], scores: str, out: Path) -> bool:
    if not feeds or any(value.datatype == "TYPE_STRING" for value in (*graph.inputs, *graph.outputs)):
        return False
    golden(graph, feeds, kinds, scores).write(out / GOLDEN)
    return True


def golden(graph: Graph, feeds: Sequence[Feed], kinds: Mapping[str, str], scores: str) -> Golden:
    """Return inputs with the outputs of ONNX Runtime in fp32 for them."""
    runner, names = session(graph.path), [value.name for value in graph.outputs]
    found = [dict(zip(names, runner.run(names, feed), strict=True)) for feed in feeds]
    limits = {name: (-bound, bound - 1) for name, bound in graph.bounds.items()}
    return Golden(feeds, found, kinds, scores, limits)


def kinds(graph: Graph, applied: Changes) -> tuple[dict[str, str], str]:
    """Return how the outputs are compared, and the name of the words' scores."""
    names = [value.name for value in graph.outputs]
    if applied.nms:
        return dict.fromkeys(names, "boxes"), ""
    if applied.masks:
        return {names[0]: "words"}, names[1]
    # Scores for each label: floats [batch, labels].
    return {
        value.name: "labels"
        for value in graph.outputs
        if len(value.sizes) == 2 and value.datatype in ("TYPE_FP32", "TYPE_FP16", "TYPE_FP64")
    }, ""


def _are_equal(one: Feed, other: Feed) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())
