"""Boxes and labels are visible on any picture."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sm.client.images import Label, colour, draw, text_colour

Pixels = NDArray[np.uint8]


def grey_picture(width: int, height: int) -> Pixels:
    return np.full((height, width, 3), 128, np.uint8)


def colour_extent(pixels: Pixels, class_id: int) -> tuple[int, ...]:
    """Return the left, top, right and bottom of the pixels in a class's colour."""
    y, x = np.nonzero((pixels == colour(class_id)).all(axis=2))
    return int(x.min()), int(y.min()), int(x.max()), int(y.max())


def count_letter_pixels(pixels: Pixels, class_id: int) -> int:
    """Count the pixels close to the text colour of a class's labels; the edges of letters are anti-aliased."""
    return int((np.abs(pixels.astype(int) - text_colour(colour(class_id))).sum(axis=2) < 200).sum())


def test_drawing_keeps_the_size_and_does_not_change_the_original() -> None:
    pixels = grey_picture(200, 100)
    drawn = draw(pixels, [Label((20, 30, 120, 90), "cat 0.93", 15)])
    assert drawn.shape == pixels.shape
    assert drawn.dtype == np.uint8
    assert (pixels == 128).all()


def test_a_box_is_drawn_along_its_edges_and_not_inside() -> None:
    drawn = draw(grey_picture(200, 100), [Label((20, 30, 120, 90), "", 15)])
    for y, x in ((60, 20), (60, 119), (89, 70)):
        assert tuple(drawn[y, x]) == colour(15)
    assert (drawn[40:80, 30:110] == 128).all()
    assert colour_extent(drawn, 15)[2:] == (119, 89)


def test_a_label_stands_above_its_box_readable_on_the_class_colour() -> None:
    drawn = draw(grey_picture(300, 200), [Label((20, 60, 280, 190), "cat 0.93", 15)])
    above = drawn[:60]
    assert colour_extent(above, 15)[1] > 30
    assert count_letter_pixels(above, 15) > 30


@pytest.mark.parametrize(
    "box", [(-5, -5, 40, 30), (180, 0, 200, 100), (0, 95, 200, 100), (190, 90, 260, 140)]
)
def test_the_label_stays_within_the_picture(box: tuple[float, float, float, float]) -> None:
    drawn = draw(grey_picture(200, 100), [Label(box, "cat", 15)])
    drawn_in_the_middle = draw(grey_picture(200, 100), [Label((50, 40, 150, 90), "cat", 15)])
    assert count_letter_pixels(drawn, 15) == count_letter_pixels(drawn_in_the_middle, 15) > 15


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 4000), (4000, 1), (5, 5)])
def test_a_picture_too_small_for_a_label_is_still_drawn_on(width: int, height: int) -> None:
    drawn = draw(grey_picture(width, height), [Label((0, 0, width, height), "hot dog 0.51", 52)])
    assert drawn.shape == (height, width, 3)
    assert (drawn != 128).any()


def test_a_large_picture_has_larger_letters() -> None:
    heights = []
    for scale in (1, 5):
        drawn = draw(
            grey_picture(600 * scale, 600 * scale), [Label((0, 300 * scale, 9, 301 * scale), "x", 0)]
        )
        left, top, _, bottom = colour_extent(drawn, 0)
        assert left == 0
        heights.append(bottom - top)
    assert heights[1] > 3 * heights[0]
