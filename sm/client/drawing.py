"""Draw boxes and labels on a picture."""

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

#: Height of the text: a share of the picture's shorter side, and at least so many pixels.
TEXT_SHARE, MIN_TEXT_PIXELS = 0.028, 12
#: Step between the hues of two classes. The golden ratio keeps the hues of any number of classes apart.
HUE_STEP = (5**0.5 - 1) / 2
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Label:
    """One box, its text and its class, which decides the colour."""

    #: x1, y1, x2, y2 in the picture's pixels.
    box: tuple[float, float, float, float]
    text: str
    class_id: int


def draw(pixels: Pixels, labels: Iterable[Label]) -> Pixels:
    """Return a copy of RGB uint8 [height, width, 3] with labels drawn in turn, the last on top."""
    picture = Image.fromarray(pixels)
    canvas = ImageDraw.Draw(picture)
    height = max(MIN_TEXT_PIXELS, round(TEXT_SHARE * min(picture.size)))
    for label in labels:
        _draw_label(canvas, picture.size, label, height)
    return np.asarray(picture)


def colour(class_id: int) -> Colour:
    """Return a class's colour, the same on every picture."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * HUE_STEP % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def text_colour(background: Colour) -> Colour:
    """Return black or white, whichever is easier to read on ``background`` (luma of ITU-R BT.601)."""
    red, green, blue = background
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else WHITE


def _draw_label(canvas: ImageDraw.ImageDraw, size: tuple[int, int], label: Label, height: int) -> None:
    box_colour = colour(label.class_id)
    x1, y1, x2, y2 = (round(value) for value in label.box)
    canvas.rectangle(
        (x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=box_colour, width=max(1, height // 6)
    )
    font, margin = _font(height), max(1, height // 5)
    left, top, right, bottom = font.getbbox(label.text)
    plate_width, plate_height = round(right - left) + 2 * margin, round(bottom - top) + 2 * margin
    # The text stands above the box if there is room, else inside it, and never beyond the picture's edge.
    x = max(0, min(x1, size[0] - plate_width))
    y = y1 - plate_height if y1 >= plate_height else max(0, min(y1, size[1] - plate_height))
    canvas.rectangle((x, y, x + plate_width - 1, y + plate_height - 1), fill=box_colour)
    canvas.text((x + margin - left, y + margin - top), label.text, fill=text_colour(box_colour), font=font)


@lru_cache(maxsize=32)
def _font(height: int) -> Font:
    return ImageFont.load_default(height)
