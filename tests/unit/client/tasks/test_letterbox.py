"""A picture is fitted into the square as Ultralytics' letterbox does it, and boxes are mapped back."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sm.client.payloads import read_description
from sm.client.tasks.detection import Letterbox
from sm.errors import StartError

SIDE_LENGTHS = st.integers(1, 140)


def make_letterbox(size: int = 64, fill: int = 114, channels: str = "RGB") -> Letterbox:
    return Letterbox.model_validate(
        {"size": size, "fill": fill, "channels": channels, "scale": 1 / 255}, strict=True
    )


def random_picture(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(width * 4001 + height).integers(0, 256, (height, width, 3), np.uint8)


def reference_tensor(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Resize, pad with grey, move the channels first, divide by 255."""
    height, width = pixels.shape[:2]
    ratio = min(size / height, size / width)
    new_width, new_height = max(round(width * ratio), 1), max(round(height * ratio), 1)
    resized = cv2.resize(pixels, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    left, top = (size - new_width) / 2, (size - new_height) / 2
    canvas = cv2.copyMakeBorder(
        resized,
        round(top - 0.1),
        round(top + 0.1),
        round(left - 0.1),
        round(left + 0.1),
        cv2.BORDER_CONSTANT,
        value=(114, 114, 114),
    )
    tensor: NDArray[np.float64] = canvas.transpose(2, 0, 1) / 255
    return tensor


def bilinear_resize(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float64]:
    """Apply the formula pixel by pixel."""
    resized = np.empty((height, width, 3))
    rows, columns = pixels.shape[:2]
    for y in range(height):
        for x in range(width):
            source_y = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            source_x = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            y0, x0 = math.floor(source_y), math.floor(source_x)
            y1, x1 = min(y0 + 1, rows - 1), min(x0 + 1, columns - 1)
            y_share, x_share = source_y - y0, source_x - x0
            upper = pixels[y0, x0] * (1 - x_share) + pixels[y0, x1] * x_share
            lower = pixels[y1, x0] * (1 - x_share) + pixels[y1, x1] * x_share
            resized[y, x] = upper * (1 - y_share) + lower * y_share
    return resized


@given(SIDE_LENGTHS, SIDE_LENGTHS)
def test_the_tensor_equals_that_of_the_reference_steps(width: int, height: int) -> None:
    assume(max(width, height) < 2 * 64)
    pixels = random_picture(width, height)
    tensor = make_letterbox().tensor(pixels)
    assert tensor.dtype == np.float32
    assert tensor.shape == (3, 64, 64)
    assert tensor.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(tensor, reference_tensor(pixels, 64), atol=1e-6)


def test_a_picture_decoded_smaller_is_placed_where_the_full_one_would_be() -> None:
    place = make_letterbox().fit(1001, 333)
    tensor = make_letterbox().tensor(random_picture(126, 42), place)
    grey = np.float32(114) * np.float32(1 / 255)
    picture_rows = (tensor != grey).any(axis=(0, 2))
    assert np.flatnonzero(picture_rows).tolist() == list(range(place.top, place.top + place.height))


@given(st.integers(1, 47), st.integers(1, 47))
def test_enlarging_is_bilinear_to_within_one_step_of_brightness(width: int, height: int) -> None:
    pixels = random_picture(width, height)
    place = make_letterbox(24).fit(width, height)
    canvas = make_letterbox(24).tensor(pixels).transpose(1, 2, 0) * 255
    inner = canvas[place.top : place.top + place.height, place.left : place.left + place.width]
    assert np.abs(inner - bilinear_resize(pixels, place.width, place.height)).max() <= 1.01


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 4000), (4000, 1), (640, 640), (4001, 3003)])
def test_any_picture_fills_one_side_and_is_centred(width: int, height: int) -> None:
    letterbox = make_letterbox(640)
    place = letterbox.fit(width, height)
    assert max(place.width, place.height) == 640
    assert min(place.width, place.height) >= 1
    assert abs(640 - place.width - 2 * place.left) <= 1
    assert abs(640 - place.height - 2 * place.top) <= 1
    assert letterbox.tensor(random_picture(width, height)).shape == (3, 640, 640)


@given(SIDE_LENGTHS, SIDE_LENGTHS, st.lists(st.floats(-2000, 2000), min_size=4, max_size=4))
def test_every_box_stays_within_the_picture(width: int, height: int, box: list[float]) -> None:
    x1, y1, x2, y2 = make_letterbox().fit(width, height).to_picture(np.array([box]))[0]
    assert 0 <= min(x1, x2) <= max(x1, x2) <= width
    assert 0 <= min(y1, y2) <= max(y1, y2) <= height


@given(SIDE_LENGTHS, SIDE_LENGTHS, st.floats(0, 1), st.floats(0, 1))
def test_a_point_of_the_picture_maps_back_to_itself(
    width: int, height: int, relative_x: float, relative_y: float
) -> None:
    place = make_letterbox().fit(width, height)
    x, y = place.left + relative_x * place.width, place.top + relative_y * place.height
    mapped_back = place.to_picture(np.array([[x, y, x, y]]))[0]
    np.testing.assert_allclose(
        mapped_back, [relative_x * width, relative_y * height] * 2, atol=1e-9 * max(width, height)
    )


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
        ('{"size": 640, "fill": 1, "channels": "RGB", "scale": 1, "mean": 0}', "mean"),
        ("size: 640", "the file"),
    ],
)
def test_a_wrong_description_stops_the_start_and_names_the_field(
    tmp_path: Path, content: str, field: str
) -> None:
    path = tmp_path / "preprocess.json"
    path.write_text(content)
    with pytest.raises(StartError, match=rf"preprocess\.json: {field}[:.]"):
        read_description(Letterbox, path)
