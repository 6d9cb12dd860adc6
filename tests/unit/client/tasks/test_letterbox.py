"""A picture is fitted into the square as Ultralytics' letterbox does it, and boxes are mapped back."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sm.client.payloads import read_description
from sm.client.tasks.detection import Letterbox
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
