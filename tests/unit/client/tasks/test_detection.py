"""Pictures are fitted and boxes mapped back as by Ultralytics' letterbox; suppression is that of the textbook's loop."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sm.client.detection import MAX_CANDIDATES, MAX_OBJECTS, Floats, Letterbox, detect_objects
from sm.client.payloads import read_description
from sm.errors import StartError

SIDES = st.integers(1, 127)


def make_letterbox(size: int = 64, fill: int = 114, channels: str = "RGB") -> Letterbox:
    described = {"size": size, "fill": fill, "channels": channels, "scale": 1 / 255}
    return Letterbox.model_validate(described, strict=True)


def random_picture(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(width * 4001 + height).integers(0, 256, (height, width, 3), np.uint8)


def reference_tensor(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Resize, pad with grey, move the channels first, divide by 255."""
    height, width = pixels.shape[:2]
    ratio = min(size / height, size / width)
    new_width, new_height = max(round(width * ratio), 1), max(round(height * ratio), 1)
    resized = cv2.resize(pixels, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    left, top = (size - new_width) / 2, (size - new_height) / 2
    sides = [(round(side - 0.1), round(side + 0.1)) for side in (top, left)]
    tensor: NDArray[np.float64] = (
        np.pad(resized, (*sides, (0, 0)), constant_values=114).transpose(2, 0, 1) / 255
    )
    return tensor


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 4000)
@example(4000, 1)
def test_the_tensor_equals_that_of_the_reference_steps(width: int, height: int) -> None:
    pixels = random_picture(width, height)
    tensor = make_letterbox().tensor(pixels)
    assert tensor.dtype == np.float32
    assert (tensor.shape, tensor.flags["C_CONTIGUOUS"]) == ((3, 64, 64), True)
    np.testing.assert_allclose(tensor, reference_tensor(pixels, 64), atol=1e-6)


def test_a_picture_decoded_smaller_is_placed_where_the_full_one_would_be() -> None:
    place = make_letterbox().fit(1001, 333)
    tensor = make_letterbox().tensor(random_picture(126, 42), place)
    grey = np.float32(114) * np.float32(1 / 255)
    picture_rows = (tensor != grey).any(axis=(0, 2))
    assert np.flatnonzero(picture_rows).tolist() == list(range(place.top, place.top + place.height))


@given(SIDES, SIDES, st.lists(st.floats(-2000, 2000), min_size=4, max_size=4))
def test_every_box_stays_within_the_picture(width: int, height: int, box: list[float]) -> None:
    x1, y1, x2, y2 = make_letterbox().fit(width, height).to_picture(np.array([box]))[0]
    assert 0 <= min(x1, x2) <= max(x1, x2) <= width
    assert 0 <= min(y1, y2) <= max(y1, y2) <= height


@given(SIDES, SIDES, st.floats(0, 1), st.floats(0, 1))
def test_a_point_of_the_picture_maps_back_to_itself(width: int, height: int, x: float, y: float) -> None:
    place = make_letterbox().fit(width, height)
    point = [place.left + x * place.width, place.top + y * place.height]
    mapped_back = place.to_picture(np.array([point * 2]))[0]
    np.testing.assert_allclose(mapped_back, [x * width, y * height] * 2, atol=1e-9 * max(width, height))


def test_channel_order_and_fill_follow_the_description() -> None:
    pixels = random_picture(30, 20)
    rgb, bgr = make_letterbox(fill=0).tensor(pixels), make_letterbox(fill=0, channels="BGR").tensor(pixels)
    np.testing.assert_array_equal(bgr, rgb[::-1])
    assert rgb[:, 0].max() == 0


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('{"size": 640, "fill": 114, "channels": "RGB"}', "scale"),
        ('{"size": 0, "fill": 114, "channels": "RGB", "scale": 1}', "size"),
        ('{"size": 640, "fill": 256, "channels": "RGB", "scale": 1}', "fill"),
        ('{"size": 640, "fill": 1, "channels": "HSV", "scale": 1}', "channels"),
        ("size: 640", "the"),
    ],
)
def test_a_wrong_description_names_the_file_and_the_field(tmp_path: Path, content: str, field: str) -> None:
    path = tmp_path / "preprocess.json"
    path.write_text(content)
    with pytest.raises(StartError, match=rf"preprocess\.json:.{field}\b"):
        read_description(Letterbox, path)


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
