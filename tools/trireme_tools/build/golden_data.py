"""Golden data: inputs, and the outputs of ONNX Runtime in fp32 for them.

At load the model compares other engines and precisions with them: see
:mod:`trireme_extensions.convert.onnx_cpu.engines`. What that needs lies beside them: :data:`BESIDE`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trireme_extensions.convert.graph_runner import SEED, Feed, RandomInputs, Runner, Sizes, session
from trireme_extensions.convert.onnx_cpu.engines import GOLDEN
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import exactness, golden_answers, openvino_engine
from trireme_tools.build.golden_answers import Golden

#: What compares with them, and the engine that they let in: without it ONNX Runtime runs the graph.
BESIDE = tuple(Path(module.__file__ or "") for module in (exactness, golden_answers, openvino_engine))
#: An integer beyond 32 bits, whose product with a thousand still has 64.
LARGE = 1_700_000_000_000
#: Inputs in the file; each adds to the time of the choice at a cold start.
MAX_FEEDS = 8


def from_random_inputs(graph: Graph, sizes: Sequence[Sizes], out: Path) -> bool:
    """Write the golden data from random inputs of some sizes; False for a graph that takes texts."""
    inputs = RandomInputs(graph, SEED)
    feeds = [inputs.feed(each) for each in sizes[:MAX_FEEDS]]
    return write(graph, [*feeds, *edges(graph, feeds[0])] if feeds else [], {}, "", out)


def edges(graph: Graph, feed: Feed) -> Iterator[Feed]:
    """Yield an input again with equal floats, with numbers that few bits have, and with NaN, if the graph
    takes them.

    Random floats are never equal, and what OpenVINO makes of small integers is right. An engine that loses
    NaN is not asked with it: see ``takes`` of each.
    """
    runner, names = session(graph.path), [value.name for value in graph.outputs]
    for change in (_round, _enlarge, _spoil):
        changed = {name: array if name in graph.bounds else change(array) for name, array in feed.items()}
        if not are_equal(changed, feed) and _is_answered(runner, names, changed):
            yield changed


def _is_answered(runner: Runner, names: list[str], feed: Feed) -> bool:
    """False for an index or a size that cannot be so large."""
    try:
        runner.run(names, feed)
    except Exception:  # onnxruntime's classes have no common parent
        return False
    return True


def _round(array: NDArray[Any]) -> NDArray[Any]:
    return np.round(array) if array.dtype.kind == "f" else array


def _spoil(array: NDArray[Any]) -> NDArray[Any]:
    """Return floats of which the first is NaN."""
    if array.dtype.kind != "f" or not array.size:
        return array
    changed = array.copy()
    changed.flat[0] = np.nan
    return changed


def _enlarge(array: NDArray[Any]) -> NDArray[Any]:
    """Return integers beyond 32 bits, or the largest of their type."""
    # A single one may be a length, or how often a loop runs.
    is_large = array.dtype.kind in "iu" and array.itemsize >= 4 and array.size > 1
    largest = min(LARGE, np.iinfo(array.dtype).max) if is_large else 0
    return array + np.asarray(largest - int(array.max(initial=0)), array.dtype) if is_large else array


def write(graph: Graph, feeds: Sequence[Feed], kinds: Mapping[str, str], scores: str, out: Path) -> bool:
    """Write the golden data and :data:`BESIDE`; False for a graph of texts, or without inputs."""
    if not feeds or any(value.datatype == "TYPE_STRING" for value in (*graph.inputs, *graph.outputs)):
        return False
    golden(graph, feeds, kinds, scores).write(out / GOLDEN)
    for file in BESIDE:
        shutil.copy(file, out)
    return True


def golden(graph: Graph, feeds: Sequence[Feed], kinds: Mapping[str, str], scores: str) -> Golden:
    """Return inputs with the outputs of ONNX Runtime in fp32 for them."""
    runner, names = session(graph.path), [value.name for value in graph.outputs]
    found = [dict(zip(names, runner.run(names, feed), strict=True)) for feed in feeds]
    return Golden(feeds, found, kinds, scores)


def are_equal(one: Feed, other: Feed) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())
