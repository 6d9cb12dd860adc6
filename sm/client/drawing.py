"""Boxes and labels on a picture."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

#: Text is as high as a label on a photograph should be, and never so small that it cannot be read.
TEXT_SHARE, TEXT_PIXELS = 0.028, 12
#: Turning by the golden angle keeps the hues of any number of classes apart.
TURN = (5**0.5 - 1) / 2
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Label:
    """One box in the picture's pixels (x1, y1, x2, y2), what is written on it, and its class."""

    box: tuple[float, float, float, float]
    text: str
    class_id: int


def draw(pixels: Pixels, labels: Iterable[Label]) -> Pixels:
    """A copy of RGB uint8 [height, width, 3] with ``labels`` drawn in turn: the last lies on top."""
    picture = Image.fromarray(pixels)
    canvas = ImageDraw.Draw(picture)
    height = max(TEXT_PIXELS, round(TEXT_SHARE * min(picture.size)))
    for label in labels:
        _draw_one(canvas, picture.size, label, height)
    return np.asarray(picture)


def colour(class_id: int) -> Colour:
    """The same for a class on every picture."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * TURN % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def ink(background: Colour) -> Colour:
    """Black or white, whichever is easier to read on ``background`` (luma of ITU-R BT.601)."""
    red, green, blue = background
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else WHITE


def _draw_one(canvas: ImageDraw.ImageDraw, size: tuple[int, int], label: Label, height: int) -> None:
    paint = colour(label.class_id)
    x1, y1, x2, y2 = (round(value) for value in label.box)
    canvas.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=paint, width=max(1, height // 6))
    font, margin = _font(height), max(1, height // 5)
    left, top, right, bottom = font.getbbox(label.text)
    width, tall = round(right - left) + 2 * margin, round(bottom - top) + 2 * margin
    # Above the box where there is room, else inside it, and never beyond the picture's edge.
    x = max(0, min(x1, size[0] - width))
    y = y1 - tall if y1 >= tall else max(0, min(y1, size[1] - tall))
    canvas.rectangle((x, y, x + width - 1, y + tall - 1), fill=paint)
    canvas.text((x + margin - left, y + margin - top), label.text, fill=ink(paint), font=font)


@lru_cache(maxsize=32)
def _font(height: int) -> Font:
    return ImageFont.load_default(height)
