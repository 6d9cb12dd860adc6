"""A picture of six colours, and how cameras store it with an EXIF orientation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.support.hostile_pictures import encode

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
#: For each EXIF orientation, how the camera stored the picture: the inverse of what must be applied.
STORED_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def six_blocks(side: int) -> NDArray[np.uint8]:
    """Three columns of two blocks, ``side`` pixels wide and high; every rotation or flip changes them."""
    colours = np.array([[RED, GREEN, BLUE], [WHITE, (0, 0, 0), (128, 128, 128)]], np.uint8)
    return np.asarray(colours.repeat(side, 0).repeat(side, 1))


def stored_picture(orientation: int, side: int) -> Image.Image:
    """The six blocks as a camera stores them that notes ``orientation``."""
    picture = Image.fromarray(six_blocks(side))
    return picture.transpose(STORED_TRANSPOSE[orientation]) if orientation in STORED_TRANSPOSE else picture


def exif_orientation(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def enlarged_jpeg(file: Path) -> bytes:
    """A picture as a JPEG of 12 megapixels, which a client decodes smaller."""
    picture = Image.open(file).convert("RGB").resize((4032, 3024), Image.Resampling.BICUBIC)
    return encode(picture, "JPEG", quality=90)
