"""Draw objects on a picture: each tinted, outlined and named, in a colour of its own."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

#: The share of an object's colour in its pixels.
TINT = 0.45
#: The step between two hues: the golden angle keeps the colours of neighbours apart.
HUE_STEP = (5**0.5 - 1) / 2
FONT = cv2.FONT_HERSHEY_SIMPLEX


@dataclass(frozen=True)
class DrawnObject:
    """An object's mask [height, width], and its name with the corner (x, y) it is written at."""

    mask: NDArray[np.bool_]
    text: str
    corner: tuple[float, float]


def draw(pixels: Pixels, objects: Sequence[DrawnObject]) -> Pixels:
    """Return a copy of RGB uint8 [height, width, 3] with ``objects`` on it, the last one on top."""
    picture = pixels.copy()
    scale = max(0.4, min(picture.shape[:2]) / 900)
    thickness = max(1, round(2 * scale))
    for index, item in enumerate(objects):
        rgb = np.array(colour(index))
        picture[item.mask] = picture[item.mask] * (1 - TINT) + rgb * TINT
        outlines, _ = cv2.findContours(item.mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        cv2.drawContours(picture, outlines, -1, rgb.tolist(), thickness)
    for index, item in enumerate(objects):  # after all masks, so that none covers a name
        _write(picture, item, colour(index), scale, thickness)
    return picture


def colour(index: int) -> tuple[float, ...]:
    """Return the RGB colour, 0 to 255, of the object with this index."""
    return tuple(255 * part for part in colorsys.hsv_to_rgb(index * HUE_STEP % 1, 0.85, 0.95))


def _write(picture: Pixels, item: DrawnObject, rgb: tuple[float, ...], scale: float, thickness: int) -> None:
    (width, height), below = cv2.getTextSize(item.text, FONT, scale, thickness)
    x = int(max(0, min(item.corner[0], picture.shape[1] - width)))
    y = int(max(height + below, min(item.corner[1], picture.shape[0] - below)))
    cv2.rectangle(picture, (x, y - height - below), (x + width, y + below), rgb, cv2.FILLED)
    cv2.putText(picture, item.text, (x, y), FONT, scale, (0, 0, 0), thickness, cv2.LINE_AA)
