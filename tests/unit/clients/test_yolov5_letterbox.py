"""A picture goes into the square as Ultralytics' letterbox puts it, and boxes come back out."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clients.yolov5.letterbox import Letterbox
from sm.errors import StartError
from sm.settings import HERE

SIZES = st.integers(1, 140)
DESCRIPTION = HERE / "model" / "yolov5" / "preprocess.json"


def letterbox(size: int = 64, fill: int = 114, channels: str = "RGB") -> Letterbox:
    return Letterbox.model_validate(
        {"size": size, "fill": fill, "channels": channels, "scale": 1 / 255}, strict=True
    )


def noise(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(width * 4001 + height).integers(0, 256, (height, width, 3), np.uint8)


def plain(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Step by step: resize, lay on grey, swap axes, divide."""
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


def bilinear(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float64]:
    """The formula, one pixel after the other."""
    out = np.empty((height, width, 3))
    rows, columns = pixels.shape[:2]
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            u = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            y0, x0 = math.floor(v), math.floor(u)
            y1, x1 = min(y0 + 1, rows - 1), min(x0 + 1, columns - 1)
            b, a = v - y0, u - x0
            upper = pixels[y0, x0] * (1 - a) + pixels[y0, x1] * a
            lower = pixels[y1, x0] * (1 - a) + pixels[y1, x1] * a
            out[y, x] = upper * (1 - b) + lower * b
    return out


@settings(deadline=None)
@given(SIZES, SIZES)
def test_it_equals_the_plain_procedure(width: int, height: int) -> None:
    assume(max(width, height) < 2 * 64)
    pixels = noise(width, height)
    found = letterbox().tensor(pixels)
    assert found.dtype == np.float32
    assert found.shape == (3, 64, 64)
    assert found.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(found, plain(pixels, 64), atol=1e-6)


def test_a_picture_of_twice_the_size_is_averaged() -> None:
    board = (np.indices((256, 256)).sum(0) % 2 * 200).astype(np.uint8)[..., None].repeat(3, 2)
    assert (letterbox().tensor(board) == np.float32(100) * np.float32(1 / 255)).all()


def test_a_picture_that_was_decoded_smaller_lies_where_the_whole_one_does() -> None:
    place = letterbox().fit(1001, 333)
    found = letterbox().tensor(noise(126, 42), place)
    grey = np.float32(114) * np.float32(1 / 255)
    inner = (found != grey).any(axis=(0, 2))
    assert np.flatnonzero(inner).tolist() == list(range(place.top, place.top + place.height))


@settings(deadline=None)
@given(st.integers(1, 47), st.integers(1, 47))
def test_it_resizes_bilinearly_to_one_step_of_brightness(width: int, height: int) -> None:
    pixels = noise(width, height)
    place = letterbox(24).fit(width, height)
    found = letterbox(24).tensor(pixels).transpose(1, 2, 0) * 255
    inner = found[place.top : place.top + place.height, place.left : place.left + place.width]
    assert np.abs(inner - bilinear(pixels, place.width, place.height)).max() <= 1.01


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 4000), (4000, 1), (640, 640), (4001, 3003)])
def test_any_shape_fills_one_side_and_is_in_the_middle(width: int, height: int) -> None:
    box = letterbox(640)
    place = box.fit(width, height)
    assert max(place.width, place.height) == 640
    assert min(place.width, place.height) >= 1
    assert abs(640 - place.width - 2 * place.left) <= 1
    assert abs(640 - place.height - 2 * place.top) <= 1
    assert box.tensor(noise(width, height)).shape == (3, 640, 640)


@settings(deadline=None)
@given(SIZES, SIZES)
def test_the_pictures_corners_come_back_as_its_corners(width: int, height: int) -> None:
    place = letterbox(640).fit(width, height)
    inner = [[place.left, place.top, place.left + place.width, place.top + place.height]]
    np.testing.assert_allclose(place.to_picture(np.array(inner, float)), [[0, 0, width, height]], atol=1e-9)


@settings(deadline=None)
@given(SIZES, SIZES, st.lists(st.floats(-2000, 2000), min_size=4, max_size=4))
def test_no_box_leaves_the_picture(width: int, height: int, box: list[float]) -> None:
    x1, y1, x2, y2 = letterbox().fit(width, height).to_picture(np.array([box]))[0]
    assert 0 <= min(x1, x2) <= max(x1, x2) <= width
    assert 0 <= min(y1, y2) <= max(y1, y2) <= height


@settings(deadline=None)
@given(SIZES, SIZES, st.floats(0, 1), st.floats(0, 1))
def test_a_point_of_the_picture_comes_back_to_itself(width: int, height: int, u: float, v: float) -> None:
    place = letterbox().fit(width, height)
    x, y = place.left + u * place.width, place.top + v * place.height
    back = place.to_picture(np.array([[x, y, x, y]]))[0]
    np.testing.assert_allclose(back, [u * width, v * height] * 2, atol=1e-9 * max(width, height))


def test_no_box_stays_no_box() -> None:
    assert letterbox().fit(3, 2).to_picture(np.empty((0, 4))).shape == (0, 4)


def test_a_model_may_want_blue_first_and_another_grey() -> None:
    pixels = noise(30, 20)
    rgb, bgr = letterbox(fill=0).tensor(pixels), letterbox(fill=0, channels="BGR").tensor(pixels)
    np.testing.assert_array_equal(bgr, rgb[::-1])
    assert rgb[:, 0].max() == 0


def test_the_models_description_is_what_yolov5_wants() -> None:
    box = Letterbox.load(DESCRIPTION)
    assert (box.size, box.fill, box.channels) == (640, 114, "RGB")
    assert box.scale == pytest.approx(1 / 255)


@pytest.mark.parametrize(
    ("content", "named"),
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
    tmp_path: Path, content: str, named: str
) -> None:
    path = tmp_path / "preprocess.json"
    path.write_text(content)
    with pytest.raises(StartError, match=rf"preprocess\.json: {named}: "):
        Letterbox.load(path)


def test_a_missing_description_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is missing"):
        Letterbox.load(tmp_path / "preprocess.json")
