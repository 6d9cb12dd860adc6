"""Compare a built model with its source.

The source runs without optimization and one record at a time, on random inputs of several batch sizes and
lengths; the built model runs as on the target, in whole batches. This reveals a graph that was exported for
one batch size or length only, and an optimization that changes answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import CommandError
from sm.repository.manifest import Accuracy, Precision
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.graph_runner import (
    SEED,
    Feed,
    RandomInputs,
    Runner,
    Sizes,
    SizeSearch,
    error_reason,
    format_sizes,
    free_sizes,
    session,
)
from trireme_extensions.convert.onnx_graph import Graph

#: Batch sizes that are compared.
BATCHES = (1, 3, 8)
#: Allowed differences: of each number, and of an output's largest number. For INT8 the loss depends on the
#: model and its calibration, so it is measured and left to a person to judge.
ALLOWED: Mapping[Precision, tuple[float, float]] = {
    "fp32": (1e-3, 1e-4),
    "fp16": (2e-2, 2e-2),
    "bf16": (1e-1, 1e-1),
}
#: The next step for a graph whose answers differ for a good reason, such as random numbers in it.
NEXT_STEP = "If that is as it should be, build with --no-compare."


@dataclass
class Comparison:
    """Compares an artifact with its source. ``largest`` is the largest batch of the target, ``ranges`` the
    sizes that were asked for.
    """

    graph: Graph
    largest: int
    precision: Precision = "fp32"
    ranges: Mapping[str, Range] = field(default_factory=dict)
    worst: float = 0.0
    total: float = 0.0
    count: int = 0
    sizes: list[str] = field(default_factory=list)

    def against(
        self, artifact: Path | Runner, source: Runner | None = None, searched_sizes: tuple[Sizes, ...] = ()
    ) -> Accuracy:
        """Compare a graph, or what runs one, with ``source`` (the graph if None).

        It does so at the sizes ``searched_sizes`` if a search was made before.

        Raises :class:`CommandError` if the difference is too large.
        """
        source = source or session(self.graph.path, optimized=False)
        # ONNX Runtime's optimizations would undo the effects of another precision.
        built = (
            session(artifact, optimized=self.precision == "fp32") if isinstance(artifact, Path) else artifact
        )
        inputs = RandomInputs(self.graph, SEED)
        for batch, sizes in self._cases(searched_sizes or SizeSearch(self.graph, source, self.ranges).find()):
            feed = inputs.feed(sizes, batch)
            case = f"{batch}x{format_sizes(sizes)}" if sizes else str(batch)
            self._compare_case(case, self._expected(source, feed, case), self._run(built, feed, case))
            self.sizes.append(case)
        mean = self.total / max(1, self.count)
        return Accuracy(max_error=self.worst, mean_error=mean, sizes=tuple(self.sizes))

    def _cases(self, searched_sizes: tuple[Sizes, ...]) -> Iterator[tuple[int, Sizes]]:
        batches = sorted({min(batch, self.largest) for batch in BATCHES}) if self.graph.batched else [1]
        is_requested = any(name in self.ranges for name in free_sizes(self.graph))
        for batch in batches:
            for index, sizes in enumerate(searched_sizes):
                # A batch of the largest requested shape may need more memory than there is.
                if batch == 1 or not is_requested or not index or index < len(searched_sizes) - 1:
                    yield batch, sizes

    def _expected(self, source: Runner, feed: Feed, case: str) -> list[NDArray[Any]]:
        if not self.graph.batched:
            return self._run(source, feed, case)
        count = len(next(iter(feed.values())))
        records = [
            self._run(source, {name: array[record : record + 1] for name, array in feed.items()}, case)
            for record in range(count)
        ]
        return [np.concatenate(parts) for parts in zip(*records, strict=True)]

    def _run(self, runner: Runner, feed: Feed, case: str) -> list[NDArray[Any]]:
        names = [value.name for value in self.graph.outputs]
        try:
            outputs = runner.run(names, dict(feed))
        except Exception as error:  # onnxruntime's classes have no common parent
            raise CommandError(
                f"{self.graph.path} gives no answer for inputs of {case}: {error_reason(error)}."
            ) from error
        return outputs

    def _compare_case(self, case: str, expected: list[NDArray[Any]], actual: list[NDArray[Any]]) -> None:
        for value, left, right in zip(self.graph.outputs, expected, actual, strict=True):
            if left.shape != right.shape:
                raise CommandError(
                    f"{value.name} for inputs of {case} has the shape {list(right.shape)} in a batch and "
                    f"{list(left.shape)} record by record: the graph was exported for one size."
                )
            error = differences(left, right)
            scale = np.abs(np.nan_to_num(left.astype(np.float64))) if left.dtype != object else 0 * error
            is_exact = self.precision == "fp32" and left.dtype.kind != "f"
            relative, absolute = (0.0, 0.0) if is_exact else ALLOWED.get(self.precision, (0.0, 0.0))
            allowed = relative * scale + absolute * max(1.0, float(scale.max(initial=0)))
            if self.precision != "int8" and not bool((error <= allowed).all()):
                raise CommandError(
                    f"{value.name} differs from its source by up to {np.nanmax(error):.3g} for inputs of "
                    f"{case}: the graph was exported for one size, or an optimization breaks it. {NEXT_STEP}"
                )
            self.worst = max(self.worst, float(error.max(initial=0)))
            self.total, self.count = self.total + float(error.sum()), self.count + error.size


def differences(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute differences. Texts differ by 0 or infinity; equal infinities and two NaN by 0."""
    if first.dtype == object:
        return np.where(first == second, 0.0, np.inf)
    first_numbers, second_numbers = first.astype(np.float64), second.astype(np.float64)
    same = (first == second) | (np.isnan(first_numbers) & np.isnan(second_numbers))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(first_numbers - second_numbers))


def describe(accuracy: Accuracy) -> str:
    """Return what a build says of an accuracy."""
    samples = accuracy.samples
    agreement = f", {samples[0]} of {samples[1]} samples answered alike" if samples else ""
    return (
        f"differs by at most {accuracy.max_error:.2g} (mean {accuracy.mean_error:.2g}) "
        f"over inputs of {', '.join(accuracy.sizes)}{agreement}"
    )
