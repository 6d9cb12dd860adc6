"""When an engine's answer is as good as the golden one, by the kind of the output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trireme_extensions.convert.onnx_cpu.engines import GOLDEN
from trireme_tools.build.golden_answers import CONFIDENCE, Golden, Mismatch


def numbers(*values: float) -> np.ndarray[Any, Any]:
    return np.array([values], np.float32)


def golden(name: str, value: Any, kind: str = "", **others: Any) -> Golden:
    return Golden([{"x": numbers(1)}], [{name: value, **others}], {name: kind} if kind else {})


def changed(array: np.ndarray[Any, Any], place: Any, value: Any) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy[place] = value
    return copy


LABELS = golden("y", numbers(19.0, 3.0, 11.0, 8.0), "labels")
NEARLY_EQUAL = golden("y", numbers(0.5, 0.201, 0.2, 0.1), "labels")
ROWS = np.array([[[0, 0, 100, 100, 0.9, 1], [50, 50, 80, 90, 0.8, 2], [0] * 6]], np.float32)
BOXES = golden("y", ROWS, "boxes")
BARELY = changed(ROWS * 0, (0, 0), [0, 0, 100, 100, 0.505, 1])
BOXES_FROM_HALF = replace(golden("y", BARELY, "boxes"), feeds=[{CONFIDENCE: np.array([[0.5]], np.float32)}])
MOVED = np.array([[0.2] * 4 + [0.004, 0]] * 2 + [[0] * 6], np.float32)
IDS, SCORES = np.array([[[7, 8, 9, 4, 5, 6]]]), np.log(numbers(0.4, 0.2, 0.1, 0.09, 0.05, 0.01))[None]
WORDS = replace(golden("y", IDS, "words", scores=SCORES), scores="scores")
RANGE = np.linspace(-1, 1, 200, dtype=np.float32)[None]
VALUES = golden("y", RANGE)


@pytest.mark.parametrize(
    ("known", "answer", "scores", "difference"),
    [
        # Labels keep their order and scores within the tolerance; those with nearly the same score may swap.
        (LABELS, numbers(19.1, -7.0, 11.0, 8.0), None, 0.1 / 19),
        (LABELS, numbers(19.5, 3.0, 11.0, 8.0), None, None),
        (LABELS, numbers(19.0, 8.1, 11.0, 8.0), None, None),
        (LABELS, numbers(10.9, 3.0, 11.0, 8.0), None, None),
        # So may the last of the best and the next one.
        (golden("y", numbers(9.0, 8.0, 7.0, 6.95), "labels"), numbers(9.0, 8.0, 6.95, 7.0), None, 0.05 / 7),
        (NEARLY_EQUAL, numbers(0.5, 0.2, 0.201, 0.1), None, 0.001),
        # Boxes are matched by class and place.
        (BOXES, (ROWS + MOVED)[:, [1, 0, 2]], None, 0.004),
        (BOXES, changed(ROWS, (0, 1, 4), 0), None, None),
        # One that is as good as the threshold may be missing on either side.
        (BOXES_FROM_HALF, (BARELY * 0)[:, [1, 1, 1]], None, 0.0),
        (replace(BOXES_FROM_HALF, answers=[{"y": BARELY * 0}]), BARELY, None, 0.0),
        (BOXES, changed(ROWS, (0, 1, 5), 3), None, None),
        (BOXES, ROWS + np.array([30, 30, 0, 0, 0, 0], np.float32), None, None),
        # Words are the same but for the last ones, and their probabilities close.
        (WORDS, changed(IDS, (..., 5), 99), SCORES + np.float32(0.01), 0.00402),
        (WORDS, IDS + 1, SCORES, None),
        (WORDS, IDS, SCORES + np.float32(0.05), None),
        # Other outputs are compared with their range, and whole numbers are equal.
        (VALUES, changed(RANGE, (0, 3), RANGE[0, 3] + 0.04), None, 0.04),
        (VALUES, changed(RANGE, (0, 3), RANGE[0, 3] + 0.06), None, None),
        (VALUES, RANGE + np.float32(0.02), None, None),
        (VALUES, RANGE * np.float32(np.nan), None, None),
        (VALUES, RANGE.astype(np.float64), None, None),
        (golden("y", np.array([[1, 2]])), np.array([[1, 3]]), None, None),
    ],
)
def test_an_answer_is_compared_as_its_kind_asks(
    known: Golden, answer: Any, scores: Any, difference: float | None
) -> None:
    outputs = {"y": answer} if scores is None else {"y": answer, "scores": scores}
    if difference is None:
        with pytest.raises(Mismatch):
            known.compare(0, outputs, 0.01)
    else:
        assert known.compare(0, outputs, 0.01) == pytest.approx(difference, rel=1e-3)


@pytest.mark.parametrize(
    "answer", [ROWS * 0, changed(ROWS, (0, 0, 5), 3), ROWS + np.array([60, 60, 0, 0, 0, 0], np.float32)]
)
def test_no_tolerance_takes_boxes_of_another_class_or_place(answer: Any) -> None:
    with pytest.raises(Mismatch, match="other boxes"):
        BOXES.compare(0, {"y": answer}, 0.5)


def test_the_file_keeps_everything(tmp_path: Path) -> None:
    known = golden("y", numbers(1, 2), "labels")
    known.write(tmp_path / GOLDEN)
    read = Golden.read(tmp_path / GOLDEN)
    assert read.kinds == {"y": "labels"}
    assert read.feeds[0]["x"].tolist() == [[1]]
    assert read.answers[0]["y"].dtype == np.float32
