"""Compare every engine and precision that this processor has with fp32, on a team's own inputs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from sm.triton.onnx_cpu import engines
from sm.triton.onnx_cpu.engines import Candidate, Golden, Wanted

#: The report in the model's folder.
FILE = "accuracy.md"
#: The first inputs of the folder, with which int8 is calibrated; all are compared.
CALIBRATED = 100
#: The share of best answers in which int8 must agree with fp32; else its graph is not kept.
MIN_AGREEMENT = 0.995


def write(golden: Golden, version: Path, by_record: bool) -> str:
    """Return the report as Markdown, and remove the graph in int8 if it agrees too little.

    Args:
        golden: The inputs with the outputs of fp32.
        version: The version folder with both graphs.
        by_record: See :class:`~sm.triton.onnx_cpu.engines.Wanted`.
    """
    flags = engines.processor_flags()
    possible = engines.candidates(Wanted(), flags, engines.versions(), is_quantized=True)
    rows, worst_int8 = [], 1.0
    for candidate in reversed(possible):
        agreement, row = _row(golden, candidate, version, by_record)
        rows.append(row)
        worst_int8 = min(worst_int8, agreement if candidate.precision == "int8" else 1.0)
    notes = []
    if worst_int8 < MIN_AGREEMENT:
        (version / engines.INT8_GRAPH).unlink()
        notes = [f"int8 fails: it agrees in less than {100 * MIN_AGREEMENT:.1f} %, so it is not used.", ""]
    count, instructions = len(golden.feeds), sorted(flags & (engines.BF16 | engines.INT8))
    return "\n".join(
        [
            f"    {shlex.join(['sm', *sys.argv[1:]])}",
            "",
            f"{datetime.now(timezone.utc):%Y-%m-%d}, {count} inputs; int8 was calibrated with "
            f"{min(count, CALIBRATED)} of them. The processor has {', '.join(instructions) or 'neither'}.",
            "",
            "| engine | same best answer as fp32 | mean difference of its score | worst | processor time |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *notes,
        ]
    )


def _row(golden: Golden, candidate: Candidate, version: Path, by_record: bool) -> tuple[float, str]:
    """Return the share of equal best answers, and the line of the table."""
    runner = engines.load(candidate, version / engines.GRAPH, 1, by_record)
    equal: list[bool] = []
    differences: list[float] = []
    for feed, expected in zip(golden.feeds, golden.answers, strict=True):
        actual = dict(zip(expected, runner.run(list(expected), feed), strict=True))
        for same, difference in _compare(golden, expected, actual):
            equal += same
            differences += difference
    agreement = float(np.mean(equal)) if equal else 1.0
    agreed = f"{100 * agreement:.1f} %" if equal else "–"
    mean, worst = 100 * float(np.mean(differences)), 100 * float(np.max(differences))
    milliseconds = 1000 * engines.processor_seconds(runner, golden.feeds[0])
    return agreement, f"| {candidate} | {agreed} | {mean:.2f} % | {worst:.2f} % | {milliseconds:.1f} ms |"


def _compare(golden: Golden, expected: Any, actual: Any) -> Iterator[tuple[list[bool], list[float]]]:
    """Yield for each output whether the best answers are equal, and how far their scores are apart.

    As the gate at the start: relative to the score, or to 1 if it is smaller. Other outputs: relative to
    their largest number.
    """
    for name, values in expected.items():
        kind = golden.kinds.get(name)
        if kind:
            ids, scores = _best(golden, kind, name, expected)
            other_ids, others = _best(golden, kind, name, actual)
            yield (
                (ids == other_ids).tolist(),
                (np.abs(scores - others) / np.maximum(1, np.abs(scores))).tolist(),
            )
        elif name != golden.scores and values.dtype.kind == "f" and values.size:
            error = np.abs(values.astype(np.float64) - actual[name]).max()
            yield [], [float(error / max(1e-12, float(np.abs(values).max())))]


def _best(golden: Golden, kind: str, name: str, outputs: Any) -> tuple[Any, Any]:
    """Return the best labels, words or classes of each record, and their scores."""
    values = outputs[name]
    if kind == "labels":
        return values.argmax(-1).ravel(), values.max(-1).ravel()
    if kind == "words":
        return values[..., 0].ravel(), np.exp(outputs[golden.scores][..., 0]).ravel()
    return values[..., 0, 5].ravel(), values[..., 0, 4].ravel()
