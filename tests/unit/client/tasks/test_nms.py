"""Non-maximum suppression finds the same objects as the textbook loop, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sm.client.tasks.detection import MAX_CANDIDATES, MAX_OBJECTS, Floats, detect_objects

Objects = list[tuple[int, float, list[float]]]


def intersection_over_union(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)) - width * height
    return width * height / union if union else 0.0


def suppress_by_loops(rows: Floats, confidence: float, iou: float) -> Objects:
    """Compare one row after the other. Examples that depend on the last bit of a float are skipped."""
    candidates: Objects = []
    for row in rows:
        label = int(row[5:].argmax())
        score = row[4] * row[5 + label]
        x, y, half_width, half_height = (float(value) for value in (*row[:2], *(row[2:4] / 2)))
        if score > confidence:
            box = [x - half_width, y - half_height, x + half_width, y + half_height]
            candidates.append((label, float(score), box))
    selected: Objects = []
    for label, score, box in sorted(candidates, key=lambda candidate: -candidate[1]):
        overlaps = [intersection_over_union(box, other[2]) for other in selected if other[0] == label]
        assume(all(abs(overlap - iou) > 1e-5 for overlap in overlaps))
        if all(overlap <= iou for overlap in overlaps):
            selected.append((label, score, box))
    return selected[:MAX_OBJECTS]


def random_rows(seed: int, count: int, classes: int) -> Floats:
    """Boxes so crowded that most overlap with another."""
    rows: Floats = np.random.default_rng(seed).random((count, 5 + classes), np.float32)
    rows[:, :2] *= 100
    rows[:, 2:4] = 10 + 40 * rows[:, 2:4]
    return rows


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 100) | st.just(306),
    classes=st.integers(1, 4),
    confidence=st.sampled_from([0.0, 0.25, 0.5]),
    iou=st.sampled_from([0.1, 0.45, 0.9, 1.0]),
)
@settings(max_examples=25)
def test_objects_equal_those_of_the_textbook_loop(
    seed: int, count: int, classes: int, confidence: float, iou: float
) -> None:
    rows = random_rows(seed, count, classes)
    expected = suppress_by_loops(rows, confidence, iou)
    objects = detect_objects(rows, confidence, iou)
    assert objects.classes.tolist() == [label for label, _, _ in expected]
    np.testing.assert_allclose(objects.scores, [score for _, score, _ in expected])
    boxes = np.array([box for _, _, box in expected]).reshape(-1, 4)
    np.testing.assert_allclose(objects.boxes, boxes, atol=1e-4)


def test_equal_scores_keep_the_order_of_the_rows_also_when_there_are_too_many() -> None:
    rows = np.array([[0, 0, 8, 8, 1, 0.75]] * (3 * MAX_CANDIDATES), np.float32)
    rows[:, 0] = 20 * np.arange(len(rows))
    left = detect_objects(rows, 0.5, 0.45).boxes[:, 0]
    assert left.tolist() == [20 * index - 4 for index in range(MAX_OBJECTS)]


@pytest.mark.parametrize(
    "rows", [np.empty((0, 85)), np.zeros((25_200, 85)), np.full((10, 6), np.nan)], ids=len
)
def test_empty_zero_or_nan_rows_give_no_objects(rows: Floats) -> None:
    objects = detect_objects(rows.astype(np.float32), 0.0, 0.45)
    assert (len(objects), objects.boxes.shape) == (0, (0, 4))
