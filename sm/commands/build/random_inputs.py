"""Random inputs for a graph, of given sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.commands.build.onnx_graph import Graph, Value

NUMPY = {
    "TYPE_FP16": np.float16,
    "TYPE_FP64": np.float64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_BOOL": np.bool_,
}
#: The values of a text input.
WORDS = ("", "a", "Hello", "zwölf Boxkämpfer", "3.5")
#: A size that is the sum of others, such as ``past_sequence_length + 1``.
SUM = re.compile(r"\s*\+\s*")
Feed = Mapping[str, NDArray[Any]]
#: Sizes by name.
Sizes = Mapping[str, int]


class RandomInputs:
    """Makes inputs. The same ``seed`` gives the same inputs."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.generator = np.random.default_rng(seed)

    def feed(self, sizes: Sizes, batch: int = 1) -> Feed:
        """Make the graph's inputs. ``batch`` is ignored if the graph takes no batches."""
        return {value.name: self._array(value, sizes, batch) for value in self.graph.inputs}

    def _array(self, value: Value, sizes: Sizes, batch: int) -> NDArray[Any]:
        shape = tuple(_number(size, sizes) for size in value.sizes)
        if self.graph.batched:
            shape = (batch, *shape[1:])
        if value.datatype == "TYPE_STRING":
            return self.generator.choice(np.array(WORDS, object), shape)
        kind = NUMPY.get(value.datatype, np.float32)
        if np.issubdtype(kind, np.floating):
            return self.generator.standard_normal(shape).astype(kind)
        if value.name in self.graph.compared:
            return np.full(shape, self.graph.compared[value.name], kind)
        bound = None if value.datatype == "TYPE_BOOL" else self.graph.bounds.get(value.name)
        if bound:
            return self.generator.integers(0, min(bound, 2**7), shape).astype(kind)
        if value.datatype == "TYPE_UINT8":
            return self.generator.integers(0, 256, shape).astype(kind)
        # An integer input without a table is most likely a mask; a mask of zeros would hide everything.
        mask = self.generator.integers(0, 2, shape)
        mask[..., :1] = 1
        return mask.astype(kind)


def free_sizes(graph: Graph) -> tuple[str, ...]:
    """Return the names of the sizes that a caller chooses, in the order of the inputs, without the batch."""
    return tuple(dict.fromkeys(_free_sizes(graph)))


def elements(graph: Graph, sizes: Sizes) -> list[int]:
    """Return how many numbers each input has."""
    skipped = int(graph.batched)
    return [math.prod(_number(size, sizes) for size in value.sizes[skipped:]) for value in graph.inputs]


def named_sizes(graph: Graph, sizes: Sizes) -> dict[str, int]:
    """Return the number of each free size by its name, including sums."""
    free = [size for value in graph.inputs for size in value.sizes if isinstance(size, str)]
    return {size: _number(size, sizes) for size in free if size in sizes or SUM.search(size)}


def _free_sizes(graph: Graph) -> Iterator[str]:
    for value in graph.inputs:
        for size in value.sizes[1:] if graph.batched else value.sizes:
            if isinstance(size, str):
                yield from (part for part in SUM.split(size) if not part.isdecimal())


def _number(size: int | str, sizes: Sizes) -> int:
    if isinstance(size, int):
        return size
    return sum(int(part) if part.isdecimal() else sizes.get(part, 1) for part in SUM.split(size))
