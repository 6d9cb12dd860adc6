"""Compare each engine and precision of this processor with fp32, on a team's own inputs, and time them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from sm.errors import CommandError
from trireme_extensions.convert.accuracy import differences
from trireme_extensions.convert.graph_runner import Feed
from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import Candidate, Wanted
from trireme_tools.build.golden_answers import Golden

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
