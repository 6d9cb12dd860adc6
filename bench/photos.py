"""What phones and screens send: an enlarged sample with the noise of a sensor, and a screenshot."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from sm.settings import HERE

COFFEE = HERE / "clients" / "resnet" / "sample" / "coffee.jpg"
#: The noise of a sensor, in steps of brightness: 12 megapixels are 3 MB then.
NOISE, QUALITY, ORIENTATION_TAG = 6.0, 92, 0x0112


def jpeg(width: int, height: int, orientation: int = 1) -> bytes:
    """Return the sample of coffee as a camera of that size would store it."""
    picture = Image.open(COFFEE).convert("RGB").crop((33, 0, 566, 400))
    if orientation == 6:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = np.random.default_rng(12).normal(0, NOISE, (height, width, 1)).astype(np.int16)
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    stream = io.BytesIO()
    noisy = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
    noisy.save(stream, "JPEG", quality=QUALITY, **({"exif": exif} if orientation > 1 else {}))
    return stream.getvalue()


def screenshot() -> bytes:
    """Return a PNG of 1,920 by 1,080 pixels with windows of text, and a picture among them."""
    screen = Image.new("RGB", (1920, 1080), (236, 240, 244))
    draw = ImageDraw.Draw(screen)
    for left, top, right, bottom in ((40, 60, 1180, 1020), (1220, 60, 1880, 520)):
        draw.rectangle((left, top, right, bottom), fill="white", outline=(160, 160, 160))
        for line in range(top + 20, bottom - 20, 18):
            text = "the quick brown fox jumps over the lazy dog " * 2
            draw.text((left + 20, line), text, fill=(40, 40, 40))
    screen.paste(Image.open(COFFEE), (1240, 560))
    stream = io.BytesIO()
    screen.save(stream, "PNG")
    return stream.getvalue()


#: The pictures by name, the same on every machine.
PHOTOS: dict[str, Callable[[], bytes]] = {
    "12MP-turned": partial(jpeg, 4032, 3024, 6),
    "12MP": partial(jpeg, 4032, 3024),
    "2MP": partial(jpeg, 1632, 1224),
    "0.1MP": partial(jpeg, 400, 300),
    "screenshot": screenshot,
}
