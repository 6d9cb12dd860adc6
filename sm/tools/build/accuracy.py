"""A built model against its source, on random inputs of several batch sizes and lengths.

The source runs as it is written (no optimization) and one record at a time; the built one as the target
runs it, in whole batches. So a graph that was exported for one batch size or one length is found out, and
an optimization that changes answers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from sm.errors import StartError
from sm.repository.manifest import Accuracy, Precision
from sm.tools.build.onnx_graph import Graph, Value

#: Sizes that are tried where they are free.
BATCHES, LENGTHS = (1, 3, 8), (1, 16, 77)
#: What may differ: of each number, and of the largest number of its output. What INT8 costs depends on the
#: model and on what it was calibrated with: that is measured, and for a person to judge.
ALLOWED: Mapping[Precision, tuple[float, float]] = {
    "fp32": (1e-3, 1e-4),
    "fp16": (2e-2, 2e-2),
    "bf16": (1e-1, 1e-1),
}
SEED = 3

NUMPY = {
    "TYPE_FP16": np.float16,
    "TYPE_FP64": np.float64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_BOOL": np.bool_,
}
Feed = Mapping[str, NDArray[Any]]


class Runner(Protocol):
    """What answers inputs: an ONNX Runtime session, or the PyTorch module that a graph was exported from."""

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """The outputs in the order of their names."""


@dataclass
class Comparison:
    """``largest`` is the batch that the target will see at most."""

    graph: Graph
    largest: int
    precision: Precision = "fp32"
    worst: float = 0.0
    total: float = 0.0
    count: int = 0
    sizes: list[str] = field(default_factory=list)

    def against(self, artifact: Path, source: Runner | None = None) -> Accuracy:
        """How far it is from ``source`` (the graph if None); :class:`StartError` where that is too far."""
        source = source or session(self.graph.path, optimized=False)
        # ONNX Runtime's optimizations would take back what another precision costs.
        built = session(artifact, optimized=self.precision == "fp32")
        generator = np.random.default_rng(SEED)
        for batch, length in self._cases():
            feed = {value.name: self._random(value, batch, length, generator) for value in self.graph.inputs}
            case = f"{batch}x{length}" if self._lengths else str(batch)
            self._one(case, self._expected(source, feed, case), self._run(built, feed, case))
            self.sizes.append(case)
        mean = self.total / max(1, self.count)
        return Accuracy(max_error=self.worst, mean_error=mean, sizes=tuple(self.sizes))

    @property
    def _lengths(self) -> bool:
        """Whether more than the batch is free."""
        skipped = 1 if self.graph.batched else 0
        return any(-1 in value.shape[skipped:] for value in self.graph.inputs)

    def _cases(self) -> Iterator[tuple[int, int]]:
        batches = sorted({min(batch, self.largest) for batch in BATCHES}) if self.graph.batched else [1]
        for batch in batches:
            yield from ((batch, length) for length in (LENGTHS if self._lengths else LENGTHS[:1]))

    def _random(self, value: Value, batch: int, length: int, generator: np.random.Generator) -> NDArray[Any]:
        shape = tuple(length if size == -1 else size for size in value.shape)
        if self.graph.batched:
            shape = (batch, *shape[1:])
        kind = NUMPY.get(value.datatype, np.float32)
        if np.issubdtype(kind, np.floating):
            return generator.standard_normal(shape).astype(kind)
        bound = None if value.datatype == "TYPE_BOOL" else self.graph.bounds.get(value.name)
        if bound:
            return generator.integers(0, min(bound, 2**7), shape).astype(kind)
        if value.datatype == "TYPE_UINT8":
            return generator.integers(0, 256, shape).astype(kind)
        # Without a table to look up in, a mask is its likeliest meaning; one that hides all means nothing.
        mask = generator.integers(0, 2, shape)
        mask[..., :1] = 1
        return mask.astype(kind)

    def _expected(self, source: Runner, feed: Feed, case: str) -> list[NDArray[Any]]:
        if not self.graph.batched:
            return self._run(source, feed, case)
        count = len(next(iter(feed.values())))
        records = [
            self._run(source, {name: each[at : at + 1] for name, each in feed.items()}, case)
            for at in range(count)
        ]
        return [np.concatenate(parts) for parts in zip(*records, strict=True)]

    def _run(self, runner: Runner, feed: Feed, case: str) -> list[NDArray[Any]]:
        names = [value.name for value in self.graph.outputs]
        try:
            found = runner.run(names, dict(feed))
        except Exception as error:  # onnxruntime's classes have no common parent
            reason = str(error).splitlines()[0]
            raise StartError(f"{self.graph.path} gives no answer for inputs of {case}: {reason}.") from error
        return found

    def _one(self, case: str, expected: list[NDArray[Any]], found: list[NDArray[Any]]) -> None:
        for value, left, right in zip(self.graph.outputs, expected, found, strict=True):
            if left.shape != right.shape:
                raise StartError(
                    f"{value.name} for inputs of {case} has the shape {list(right.shape)} in a batch and "
                    f"{list(left.shape)} record by record: the graph was exported for one size."
                )
            error = np.abs(left.astype(np.float64) - right.astype(np.float64))
            scale = np.abs(left.astype(np.float64))
            relative, absolute = ALLOWED.get(self.precision, (0.0, 0.0))
            allowed = relative * scale + absolute * max(1.0, float(scale.max(initial=0)))
            if self.precision != "int8" and not bool((error <= allowed).all()):
                raise StartError(
                    f"{value.name} differs from its source by up to {np.nanmax(error):.3g} for inputs of "
                    f"{case}: the graph was exported for one size, or an optimization breaks it."
                )
            self.worst = max(self.worst, float(error.max(initial=0)))
            self.total, self.count = self.total + float(error.sum()), self.count + error.size


def session(path: Path, *, optimized: bool = True) -> Runner:
    """On processors, with all of ONNX Runtime's optimizations or none of them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return cast(
            Runner, onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        )
    except Exception as error:
        raise StartError(f"{path} cannot be run: {str(error).splitlines()[0]}.") from error
