"""A plain JPEG's pixels are the same by the quick way, and what is not plain does not take it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sm import jpeg

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8))
MOST = 61 * 83


def encoded(picture: Image.Image = NOISE, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 2}]
)
def test_its_pixels_are_pillows(options: dict[str, Any]) -> None:
    content = encoded(**options)
    pixels = jpeg.whole(content, MOST)
    assert pixels is not None
    assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


@pytest.mark.parametrize(
    "content",
    [
        encoded()[:-2],
        encoded()[: len(encoded()) // 2],
        encoded()[:200] + jpeg.END,
        encoded(NOISE.convert("L")),
        encoded(NOISE.convert("CMYK")),
        encoded(exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
        encoded(NOISE.resize((83, 62))),
        jpeg.START + jpeg.END,
        b"",
    ],
)
def test_what_is_not_plain_is_left_to_pillow(content: bytes) -> None:
    assert jpeg.whole(content, MOST) is None
