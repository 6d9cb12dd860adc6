"""Compare a built model with its source, and each engine and precision of this processor with fp32.

The source runs without optimization and one record at a time, on random inputs of several batch sizes and
lengths; the built model runs as on the target, in whole batches. This reveals a graph that was exported for
one batch size or length only, and an optimization that changes answers. The engines are compared on a team's
own inputs.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import CommandError
from sm.repository.manifest import Accuracy, Precision
from trireme_extensions.convert.build_request import Range
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
from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import Candidate, Golden, Wanted
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


#: The report in the model's folder.
REPORT = "accuracy.md"
#: How much faster than ONNX Runtime in fp32 another engine has to be.
MIN_GAIN = 1.05
#: An engine is timed for so many seconds, in a number of runs.
TIMED_S, MIN_RUNS, MAX_RUNS = 0.2, 3, 20


def write_report(golden: Golden, version: Path, by_record: bool, notes: Sequence[str] = ()) -> str:
    """Return the report as Markdown.

    Args:
        golden: The inputs with the outputs of fp32.
        version: The version folder with the graph, and perhaps one in int8.
        by_record: See :class:`~trireme_extensions.convert.onnx_cpu.engines.Wanted`.
        notes: What int8 cost.
    """
    flags = engines.processor_flags()
    possible = reversed(_possible((version / engines.INT8_GRAPH).is_file()))
    rows = [_row(golden, candidate, version, by_record) for candidate in possible]
    count, instructions = len(golden.feeds), sorted(flags & (engines.BF16 | engines.INT8))
    return "\n".join(
        [
            f"    {shlex.join(['sm', *sys.argv[1:]])}",
            "",
            f"{datetime.now(timezone.utc):%Y-%m-%d}, {count} inputs. The processor has "
            f"{', '.join(instructions) or 'neither bf16 nor int8'}.",
            "",
            "| engine | same best answer as fp32 | mean difference of its score | worst | processor time |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *notes,
        ]
    )


def fastest_first(version: Path, by_record: bool, tolerance: float = Wanted.tolerance) -> tuple[str, ...]:
    """Return the engines that answer the golden data as they should on this processor, the fastest first.

    One has to be :data:`MIN_GAIN` times faster than ONNX Runtime in fp32 to come before it.

    Raises:
        CommandError: There are no golden data.
    """
    try:
        golden = Golden.read(version / engines.GOLDEN)
    except (OSError, ValueError, KeyError):
        raise CommandError(
            "engines are compared on real inputs, and there are none: name a folder with --calibration."
        ) from None
    chooser = engines.Chooser(version, Wanted(tolerance=tolerance, by_record=by_record))
    seconds: dict[str, float] = {}
    for candidate in _possible((version / engines.INT8_GRAPH).is_file()):
        if candidate != engines.FP32 and "fault" in chooser.attempt(candidate):
            continue
        runner = engines.load(candidate, version / engines.GRAPH, 1, by_record)
        margin = 1.0 if candidate == engines.FP32 else MIN_GAIN
        seconds[str(candidate)] = processor_seconds(runner, golden.feeds[0]) * margin
    return tuple(sorted(seconds, key=lambda name: seconds[name]))


def _possible(is_quantized: bool) -> list[Candidate]:
    """Return all that this processor can run, ONNX Runtime in fp32 last."""
    installed = engines.versions()
    return engines.candidates(
        Wanted(), engines.processor_flags(), installed, is_quantized=is_quantized, measured=engines.ALL
    )


def processor_seconds(runner: Any, feed: Feed) -> float:
    """Return the median of the processor time of a run."""
    times: list[float] = []
    started = time.monotonic()
    while len(times) < MIN_RUNS or (len(times) < MAX_RUNS and time.monotonic() - started < TIMED_S):
        before = time.process_time()
        runner.run(runner.outputs, dict(feed))
        times.append(time.process_time() - before)
    return sorted(times)[len(times) // 2]


def _row(golden: Golden, candidate: Candidate, version: Path, by_record: bool) -> str:
    """Return the line of the table."""
    try:
        runner = engines.load(candidate, version / engines.GRAPH, 1, by_record)
    except ValueError as error:  # OpenVINO, of a graph that it computes otherwise
        return f"| {candidate} | not used: {error} | – | – | – |"
    equal: list[bool] = []
    apart: list[float] = []
    for feed, expected in zip(golden.feeds, golden.answers, strict=True):
        names = [name for name in expected if runner.takes([name], feed)]
        actual = dict(zip(names, runner.run(names, feed), strict=True)) if names else {}
        for same, difference in _compare(golden, expected, actual):
            equal += same
            apart += difference
    agreed = f"{100 * float(np.mean(equal)):.1f} %" if equal else "–"
    mean, worst = (f"{100 * float(of(apart)):.2f} %" if apart else "–" for of in (np.mean, np.max))
    milliseconds = 1000 * processor_seconds(runner, golden.feeds[0])
    return f"| {candidate} | {agreed} | {mean} | {worst} | {milliseconds:.1f} ms |"


def _compare(golden: Golden, expected: Any, actual: Any) -> Iterator[tuple[list[bool], list[float]]]:
    """Yield for each output whether the best answers are equal, and how far their scores are apart.

    As the gate at the start: relative to the score, or to 1 if it is smaller. Other floats: relative to their
    largest number. Of what is not a float, each number or text is a best answer.
    """
    for name in actual:
        values, kind = expected[name], golden.kinds.get(name)
        if kind:
            ids, scores = _best(golden, kind, name, expected)
            other_ids, others = _best(golden, kind, name, actual)
            yield (
                (ids == other_ids).tolist(),
                (np.abs(scores - others) / np.maximum(1, np.abs(scores))).tolist(),
            )
        elif values.dtype.kind != "f":
            yield (values == actual[name]).ravel().tolist(), []
        elif name != golden.scores and values.size:
            scale = float(np.abs(np.nan_to_num(values)).max())
            yield [], [float(differences(values, actual[name]).max() / max(1e-12, scale))]


def _best(golden: Golden, kind: str, name: str, outputs: Any) -> tuple[Any, Any]:
    """Return the best labels, words or classes of each record, and their scores."""
    values = outputs[name]
    if kind == "labels":
        return values.argmax(-1).ravel(), values.max(-1).ravel()
    if kind == "words":
        return values[..., 0].ravel(), np.exp(outputs[golden.scores][..., 0]).ravel()
    return values[..., 0, 5].ravel(), values[..., 0, 4].ravel()
