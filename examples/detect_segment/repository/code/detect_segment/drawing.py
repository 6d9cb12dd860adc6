"""Objects on a picture: each tinted, outlined and named, in a colour of its own."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

#: How much of an object's pixels is its colour.
TINT = 0.45
#: Turning the hue by the golden angle keeps the colours of neighbours apart.
TURN = (5**0.5 - 1) / 2
FONT = cv2.FONT_HERSHEY_SIMPLEX


@dataclass(frozen=True)
class Drawn:
    """An object's mask [height, width], and its name with the corner (x, y) it is written at."""

    mask: NDArray[np.bool_]
    text: str
    corner: tuple[float, float]


def draw(pixels: Pixels, objects: Sequence[Drawn]) -> Pixels:
    """A copy of RGB uint8 [height, width, 3] with ``objects`` on it, the last on top."""
    picture = pixels.copy()
    scale = max(0.4, min(picture.shape[:2]) / 900)
    thick = max(1, round(2 * scale))
    for place, each in enumerate(objects):
        paint = np.array(colour(place))
        picture[each.mask] = picture[each.mask] * (1 - TINT) + paint * TINT
        outlines, _ = cv2.findContours(each.mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        cv2.drawContours(picture, outlines, -1, paint.tolist(), thick)
    for place, each in enumerate(objects):  # when no mask can cover a name any more
        _write(picture, each, colour(place), scale, thick)
    return picture


def colour(place: int) -> tuple[float, ...]:
    """RGB of the object in this place, 0 to 255."""
    return tuple(255 * part for part in colorsys.hsv_to_rgb(place * TURN % 1, 0.85, 0.95))


def _write(picture: Pixels, each: Drawn, paint: tuple[float, ...], scale: float, thick: int) -> None:
    (width, height), below = cv2.getTextSize(each.text, FONT, scale, thick)
    x = int(max(0, min(each.corner[0], picture.shape[1] - width)))
    y = int(max(height + below, min(each.corner[1], picture.shape[0] - below)))
    cv2.rectangle(picture, (x, y - height - below), (x + width, y + below), paint, cv2.FILLED)
    cv2.putText(picture, each.text, (x, y), FONT, scale, (0, 0, 0), thick, cv2.LINE_AA)
