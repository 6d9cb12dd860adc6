"""The file of golden data, and how an engine's answers are compared with it.

Copied into the model repository beside that file, so it imports nothing of the box.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: Overlap (intersection over union) of equal boxes, for a tolerance of 1 %.
BOX_TOLERANCES = 5
#: Boxes that overlap less are never equal, however large the tolerance.
LEAST_OVERLAP = 0.5
#: Best labels and words that must be the same, in the same order: what clients answer by default.
BEST = {"labels": 3, "words": 5}
#: The input of a graph that suppresses boxes with the score below which there are none.
CONFIDENCE = "confidence"


class Mismatch(Exception):
    """Outputs differ from the golden ones by more than the tolerance."""


@dataclass(frozen=True)
class Golden:
    """Inputs, the outputs of fp32 on ONNX Runtime for them, and how the outputs are to be compared."""

    feeds: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    #: ``labels``, ``boxes`` or ``words`` by the output's name; others are compared as numbers. The words'
    #: scores are in the output ``scores``.
    kinds: Mapping[str, str] = field(default_factory=dict)
    #: The name of the words' scores.
    scores: str = ""

    @classmethod
    def read(cls, path: Path) -> Golden:
        """Read the file. Raises OSError, ValueError or KeyError."""
        with np.load(path, allow_pickle=False) as arrays:
            meta = json.loads(str(arrays["meta"]))
            feeds, answers = ([cls._part(arrays, kind, i) for i in range(meta["count"])] for kind in "io")
        if not feeds:
            raise ValueError("it has no inputs")
        return cls(feeds, answers, meta["kinds"], meta["scores"])

    @staticmethod
    def _part(arrays: Any, kind: str, index: int) -> dict[str, Any]:
        prefix = f"{kind}{index}/"
        return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}

    def write(self, path: Path) -> None:
        meta = {"count": len(self.feeds), "kinds": self.kinds, "scores": self.scores}
        arrays = {
            f"{kind}{index}/{name}": value
            for kind, rows in (("i", self.feeds), ("o", self.answers))
            for index, row in enumerate(rows)
            for name, value in row.items()
        }
        with path.open("wb") as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)

    def compare(self, index: int, actual: Mapping[str, Any], tolerance: float) -> float:
        """Return the worst difference of the outputs ``actual`` of one input. Raises :class:`Mismatch`."""
        worst = 0.0
        expected = self.answers[index]
        for name, array in actual.items():
            kind, values, other = self.kinds.get(name, "numbers"), expected[name], np.asarray(array)
            if values.shape != other.shape or values.dtype != other.dtype:
                raise Mismatch(f"{name} has another shape or type")
            if kind == "labels":
                worst = max(worst, _compare_labels(name, values, other, tolerance))
            elif kind == "boxes":
                least = float(np.min(self.feeds[index].get(CONFIDENCE, 0.0)))
                worst = max(worst, _compare_boxes(name, values, other, tolerance, least))
            elif kind == "words":
                pairs = (values, expected[self.scores]), (other, np.asarray(actual[self.scores]))
                worst = max(worst, _compare_words(name, *pairs, tolerance))
            elif name != self.scores:
                worst = max(worst, _compare_numbers(name, values, other, tolerance))
        return worst


def _compare_labels(name: str, expected: Any, actual: Any, tolerance: float) -> float:
    """Compare scores [..., labels]: the best labels are the same, their scores within the tolerance."""
    worst, count = 0.0, expected.shape[-1]
    for one, other in zip(expected.reshape(-1, count), actual.reshape(-1, count), strict=True):
        best, others = (np.argsort(-row, kind="stable")[: BEST["labels"]] for row in (one, other))
        scale = np.maximum(1.0, np.abs(one[best]))
        _compare_order(name, best, others, one / scale[0], tolerance)
        worst = max(worst, _within(name, np.abs(one[best] - other[best]) / scale, tolerance))
    return worst


def _compare_order(name: str, best: Any, others: Any, scores: Any, tolerance: float) -> None:
    """Check that the best are the same; those whose scores differ by less than the tolerance may swap.

    ``scores``: by id, of the best and of those that may be in their place.
    """
    for other, own in zip(others.tolist(), best.tolist(), strict=True):
        if abs(_score(scores, other) - _score(scores, own)) > tolerance:
            order = "in another order" if {*others.tolist()} == {*best.tolist()} else "with others among them"
            raise Mismatch(f"{name} has the best {len(best)} {order}")


def _score(scores: Any, place: int) -> float:
    """Return the score of an id: of an array, or of a mapping that may lack it."""
    return float(scores.get(place, -np.inf) if isinstance(scores, dict) else scores[place])


def _compare_boxes(name: str, expected: Any, actual: Any, tolerance: float, least: float = 0.0) -> float:
    """Objects [..., 6] (x1, y1, x2, y2, score, class): the same objects, scores within the tolerance.

    ``least``: the score below which there are none. One just above it may have no counterpart.
    """
    worst = 0.0
    pairs = zip(
        expected.reshape(-1, *expected.shape[-2:]), actual.reshape(-1, *actual.shape[-2:]), strict=True
    )
    for one, other in pairs:
        left, right = one[one[:, 4] > 0], list(other[other[:, 4] > 0])
        lonely: list[Any] = []
        for row in left:
            overlaps = [overlap(row, found) if row[5] == found[5] else -1.0 for found in right]
            if max(overlaps, default=-1.0) < max(LEAST_OVERLAP, 1 - BOX_TOLERANCES * tolerance):
                lonely.append(row)
                continue
            found = right.pop(int(np.argmax(overlaps)))
            worst = max(worst, _within(name, np.abs(row[4] - found[4]), tolerance))
        if any(row[4] > least + tolerance for row in (*lonely, *right)):
            raise Mismatch(f"{name} has other boxes: {len(right)} that are new, {len(lonely)} that are gone")
    return worst


def overlap(one: Any, other: Any) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    sides = np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = sum(float(np.prod(box[2:4] - box[:2])) for box in (one, other))
    return shared / max(areas - shared, 1e-9)


def _compare_words(name: str, expected: Any, actual: Any, tolerance: float) -> float:
    """Compare ids [..., words], best first, and their log probabilities, as :func:`_compare_labels` does."""
    worst, count = 0.0, expected[0].shape[-1]
    rows = [array.reshape(-1, count) for array in (*expected, *actual)]
    for all_ids, all_logs, all_other_ids, all_other_logs in zip(*rows, strict=True):
        best = slice(BEST["words"])
        ids, logs, other_ids = all_ids[best], all_logs[best], all_other_ids[best]
        all_scores = dict(zip(all_ids.tolist(), np.exp(all_logs).tolist(), strict=True))
        scores = np.exp(logs)
        _compare_order(name, ids, other_ids, all_scores, tolerance)
        found = dict(zip(all_other_ids.tolist(), np.exp(all_other_logs).tolist(), strict=True))
        others = [found.get(word, 0.0) for word in ids.tolist()]
        worst = max(worst, _within(name, np.abs(scores - others), tolerance))
    return worst


def _compare_numbers(name: str, expected: Any, actual: Any, tolerance: float) -> float:
    """Errors relative to the output's largest number: the mean within the tolerance, the worst in five."""
    if expected.dtype.kind != "f":
        if not np.array_equal(expected, actual):
            raise Mismatch(f"{name} has other values")
        return 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        raise Mismatch(f"{name} has other numbers that are not finite")
    error = np.abs(expected[finite].astype(np.float64) - actual[finite].astype(np.float64))
    error /= max(float(np.abs(expected[finite]).max(initial=0.0)), 1e-12)
    if float(error.mean() if error.size else 0.0) > tolerance:
        raise Mismatch(f"{name} differs by {100 * error.mean():.1f} % in the mean")
    return _within(name, error, 5 * tolerance)


def _within(name: str, error: Any, allowed: float) -> float:
    worst = float(np.max(error, initial=0.0))
    if not worst <= allowed:
        raise Mismatch(f"{name} differs by {100 * worst:.1f} %")
    return worst
