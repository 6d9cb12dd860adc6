"""A picture's bytes to pixels: refused by its header before it can hurt, upright, RGB."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sm import jpeg
from sm.errors import BadInput

#: More pixels than any camera's picture; 30,000 x 30,000 in a small PNG would be 2.7 GB of RGB.
MAX_PIXELS = 64_000_000
#: Pillow's readers that a caller may reach: no others run on a stranger's bytes.
FORMATS = ("JPEG", "PNG", "WEBP")
#: EXIF's tag, and what makes each of its values upright.
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(content: bytes) -> NDArray[np.uint8]:
    """RGB uint8 [height, width, 3] of a JPEG, PNG or WebP.

    The EXIF orientation is applied, transparency is laid on white, 16 bits become the upper 8.
    Pillow decodes what :mod:`sm.jpeg` leaves to it.

    Raises :class:`~sm.errors.BadInput`, with the reason, for everything that is no whole picture.
    """
    plain = jpeg.whole(content, MAX_PIXELS)
    if plain is not None:
        return plain
    with warnings.catch_warnings():
        # What is odd in a stranger's picture, such as damaged EXIF data, is no news for our log.
        warnings.simplefilter("ignore")
        return _decode(content)


def _decode(content: bytes) -> NDArray[np.uint8]:
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise BadInput(_too_many_pixels("too many")) from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise BadInput("the bytes are not a JPEG, PNG or WebP picture") from None
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise BadInput(_too_many_pixels(f"{width}x{height}"))
    try:
        picture.load()
        return _rgb(_upright(picture))
    except (OSError, ValueError, SyntaxError, EOFError, IndexError) as error:
        reason = "truncated" if "truncated" in str(error) else "damaged"
        raise BadInput(f"the picture is {reason}: {error}") from None


def resize(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """To ``width`` x ``height``: by area when it shrinks, bilinear when it grows."""
    shrinks = width * height < pixels.shape[0] * pixels.shape[1]
    try:
        import cv2
    except ImportError:
        # Lambda has no room for OpenCV.
        if shrinks:
            return _by_area(pixels, width, height)
        return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized: NDArray[np.uint8] = cv2.resize(pixels, (width, height), interpolation=method)  # type: ignore[assignment]
    return resized


def _by_area(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """The average of what each new pixel covers, as OpenCV's INTER_AREA has it; Pillow's box only nearly."""
    rows, columns = _covered(pixels.shape[0], height), _covered(pixels.shape[1], width)
    averaged = np.stack([rows @ pixels[..., channel] @ columns.T for channel in range(3)], axis=2)
    rounded: NDArray[np.uint8] = np.rint(averaged).astype(np.uint8)
    return rounded


def _covered(old: int, new: int) -> NDArray[np.float32]:
    """[new, old]: the share of each old pixel in each new one, along one side."""
    edges, cells = np.linspace(0, old, new + 1)[:, None], np.arange(old)
    covered = np.minimum(edges[1:], cells + 1) - np.maximum(edges[:-1], cells)
    shares: NDArray[np.float32] = (covered.clip(0) * new / old).astype(np.float32)
    return shares


def split(pixels: NDArray[np.uint8]) -> Sequence[NDArray[np.uint8]]:
    """The channels of [height, width, 3], each [height, width]."""
    try:
        import cv2
    except ImportError:
        return [pixels[..., channel] for channel in range(3)]
    planes: Sequence[NDArray[np.uint8]] = cv2.split(pixels)  # type: ignore[assignment]
    return planes


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF says. Pillow's exif_transpose writes EXIF anew too, and fails on a damaged one."""
    try:
        method = TURNS.get(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF raises anything at all, and is no reason to refuse whole pixels
        method = None
    return picture if method is None else picture.transpose(method)


def _rgb(picture: Image.Image) -> NDArray[np.uint8]:
    if picture.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip it
        grey = np.asarray(picture).astype(np.uint32) >> 8
        return np.repeat(np.minimum(grey, 255).astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.asarray(picture.convert("RGB"))


def _too_many_pixels(found: str) -> str:
    return f"the picture has {found} pixels; at most {MAX_PIXELS:,} are accepted"
