"""How good a model's answers are: by a team's own labels and boxes, else as fp32 says.

The labels and boxes are read by :mod:`right_answers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trireme_extensions.convert.graph_runner import Feed
from trireme_tools.build import box_labels
from trireme_tools.build.golden_answers import overlap

#: The score from which an answer counts: what is said with less changes with every rounding.
SURE = 0.5
#: The overlap (intersection over union) of equal boxes.
SAME_BOX = 0.9
Answer = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Input:
    """One of a team's inputs, with the answer of fp32."""

    feed: Feed
    answer: Answer
    #: The file that it was made of; empty if that is not known.
    file: str = ""
    #: The right label; None if it is not known.
    label: int | None = None
    #: The right boxes: x1, y1, x2, y2, class, whether it is a crowd; None if they are not known.
    boxes: NDArray[Any] | None = None


@dataclass(frozen=True)
class Measure:
    """How good answers are. ``kinds`` and ``scores`` say what the outputs are, as golden data do."""

    kinds: Mapping[str, str]
    scores: str
    has_labels: bool

    @property
    def name(self) -> str:
        """What it measures, for a report."""
        if self.has_labels:
            return "mAP@0.5:0.95" if self.is_precision else "accuracy"
        return "agreement with fp32" if self.kinds else "cosine similarity with fp32"

    @property
    def is_precision(self) -> bool:
        """True if boxes are compared with right ones."""
        return self.has_labels and "boxes" in self.kinds.values()

    def precision(self, inputs: Iterable[tuple[Input, Answer]]) -> tuple[float, float]:
        """Return mAP@0.5:0.95 and mAP@0.5 of answers."""
        output = next(name for name, kind in self.kinds.items() if kind == "boxes")
        pairs = ((each.boxes, answer[output]) for each, answer in inputs if each.boxes is not None)
        return box_labels.mean_average_precision(pairs)

    def judge(self, each: Input, answer: Answer) -> list[float]:
        """Return a number from 0 (wrong) to 1 for each thing that an answer says; none if it is unsure."""
        if self.is_precision:
            return [self.precision([(each, answer)])[0]]
        if self.has_labels:
            scores = next(answer[name] for name, kind in self.kinds.items() if kind == "labels")
            return [float(int(scores.reshape(-1).argmax()) == each.label)]
        judged: list[float] = []
        for name, kind in self.kinds.items():
            if kind == "labels":
                judged += _same_labels(each.answer[name], answer[name])
            elif kind == "boxes":
                judged += _same_boxes(each.answer[name], answer[name])
            elif kind == "words":
                judged += _same_words(each.answer, answer, name, self.scores)
        if not self.kinds:
            judged += [_cosine(each.answer[name], answer[name]) for name in answer]
        return judged

    def describe(self, answer: Answer) -> str:
        """Return an answer in a few words, for a picture."""
        said = []
        for name, kind in self.kinds.items():
            if kind == "labels":
                row = answer[name].reshape(-1, answer[name].shape[-1])[0]
                said.append(f"label {row.argmax()} ({probabilities(row).max():.2f})")
            elif kind == "boxes":
                boxes = answer[name].reshape(-1, answer[name].shape[-1])
                said += [f"{box[5]:.0f} ({box[4]:.2f})" for box in boxes[boxes[:, 4] > SURE]]
            elif kind == "words":
                said.append(f"word {answer[name].reshape(-1)[0]}")
        return ", ".join(dict.fromkeys(said)) or "nothing"

    def of(self, inputs: Iterable[tuple[Input, Answer]]) -> float:
        """Return the mean over inputs, or the mAP; 1 if nothing can be judged."""
        if self.is_precision:
            return self.precision(inputs)[0]
        judged = [one for each, answer in inputs for one in self.judge(each, answer)]
        return float(np.mean(judged)) if judged else 1.0


def _same_labels(expected: NDArray[Any], actual: NDArray[Any]) -> list[float]:
    rows = zip(*(array.reshape(-1, array.shape[-1]) for array in (expected, actual)), strict=True)
    return [float(one.argmax() == other.argmax()) for one, other in rows if probabilities(one).max() > SURE]


def probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """Return scores of labels as probabilities: as they are if they are some already, else by softmax."""
    numbers = scores.astype(np.float64)
    if numbers.min(initial=0) >= 0 and abs(numbers.sum() - 1) < 1e-2:
        return numbers
    powers = np.exp(numbers - numbers.max())
    shares: NDArray[Any] = powers / powers.sum()
    return shares


def _same_boxes(expected: NDArray[Any], actual: NDArray[Any]) -> list[float]:
    """Look for each sure box (x1, y1, x2, y2, score, class) of either side among all of the other."""
    rows = [array.reshape(-1, array.shape[-1]) for array in (expected, actual)]
    found = [array[array[:, 4] > 0] for array in rows]
    return [
        float(any(box[5] == other[5] and overlap(box, other) >= SAME_BOX for other in others))
        for boxes, others in (found, reversed(found))
        for box in boxes
        if box[4] > SURE
    ]


def _same_words(expected: Answer, actual: Answer, ids: str, scores: str) -> list[float]:
    sure = np.exp(expected[scores][..., 0]).ravel() > SURE
    same = expected[ids][..., 0].ravel() == actual[ids][..., 0].ravel()
    return [float(each) for each in same[sure]]


def _cosine(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    one, other = (np.nan_to_num(array.astype(np.float64)).ravel() for array in (expected, actual))
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / length if length else float(np.array_equal(one, other))
