"""Decode pictures to upright RGB pixels, after their header was checked, and resize them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sm.client.decode_budget import DECODED
from sm.client.picture_header import PictureHeader, read_header, without_metadata
from sm.errors import BadInput
from sm.metrics import JPEG_FALLBACKS

#: Pixels that are converted at a time: what that takes beside the picture and the result.
BAND_PIXELS = 2**18
#: Of each EXIF orientation: the steps through an upright picture's rows and columns (from 5 on through its
#: columns and rows) that give them in the order in which they are stored.
ORIENTATION_TURNS = {
    1: (1, 1),
    2: (1, -1),
    3: (-1, -1),
    4: (-1, 1),
    5: (1, 1),
    6: (-1, 1),
    7: (-1, -1),
    8: (1, -1),
}
#: The end of a JPEG: in the data of its scans it cannot stand, so one that has none is truncated.
JPEG_END = b"\xff\xd9"

Pixels = NDArray[np.uint8]


def decode(
    content: bytes, at_least: tuple[int, int] | None = None, header: PictureHeader | None = None
) -> Pixels:
    """RGB uint8 [height, width, 3] of a JPEG, PNG or WebP.

    The EXIF orientation is applied, transparency is laid on white, 16 bits become the upper 8. The memory is
    accounted for in :data:`~sm.client.decode_budget.DECODED` until the last reference to the pixels is gone.

    Args:
        content: The file.
        at_least: Width and height, upright, that are enough. A larger JPEG is decoded to a half, a quarter
            or an eighth of its size if both sides stay as long as that; other pictures are decoded in full.
            None: in full.
        header: The file's own, where it was read already.

    Raises :class:`~sm.errors.BadInput`, with the reason, for everything that is no whole picture or would
    take too long; :class:`~sm.errors.TooLarge` and :class:`~sm.errors.Overloaded` where it has no room.
    """
    header = header or read_header(content)
    scale = header.scale_for(*at_least) if at_least else 1
    size = header.decode_bytes(scale)
    DECODED.acquire(size)
    try:
        pixels = _decode(content, header, scale)
    except BaseException:
        DECODED.release(size)
        raise
    DECODED.keep(size, pixels)
    return pixels


def _decode(content: bytes, header: PictureHeader, scale: int) -> Pixels:
    # Behind the end of a JPEG phones write films and maps.
    if header.quick and content.rfind(JPEG_END, header.scan_offset) >= 0:
        try:
            import simplejpeg
        except ImportError:
            pass  # The gateway's Lambda has Pillow alone.
        else:
            pixels = _by_turbojpeg(simplejpeg, content, header, scale)
            if pixels is not None:
                return pixels
    if header.format == "JPEG":
        JPEG_FALLBACKS.inc()
    with warnings.catch_warnings():
        # What is odd in a stranger's picture is no news for our log.
        warnings.simplefilter("ignore")
        return _by_pillow(content, header, scale)


def _by_turbojpeg(simplejpeg: Any, content: bytes, header: PictureHeader, scale: int) -> Pixels | None:
    """In a third of Pillow's time or less: Pillow keeps four bytes of each pixel and copies them twice.

    The pixels are Pillow's, since both decode with libjpeg-turbo, damage that can be lived with included.
    None, and nothing is decoded, where something odd stands before the pixels.
    """
    # 0, and not the whole size, where nothing is to be scaled: of seven pixels seven eighths are seven too.
    width, height = header.scaled_size(scale) if scale > 1 else (0, 0)
    try:
        stored: Pixels = simplejpeg.decode_jpeg(content, min_height=height, min_width=width, strict=False)
    except ValueError as error:
        try:
            simplejpeg.decode_jpeg_header(content)
        except ValueError:
            return None
        raise BadInput(f"the picture is damaged: {error}") from None
    if header.orientation == 1:
        return stored
    pixels = _upright_like(stored.shape[0], stored.shape[1], header.orientation)
    _stored_view(pixels, header.orientation)[:] = _as_items(stored)
    return pixels


def _by_pillow(content: bytes, header: PictureHeader, scale: int) -> Pixels:
    if header.format == "JPEG":
        content = without_metadata(content)
    try:
        picture = Image.open(io.BytesIO(content), formats=(header.format,))
        if picture.size != (header.width, header.height):
            raise Image.DecompressionBombError
    except Image.DecompressionBombError:
        raise BadInput("the picture is damaged: it says two sizes") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise BadInput("the bytes are not a JPEG, PNG or WebP picture") from None
    try:
        if scale > 1:
            # Pillow divides, and rounds down, to find the scale.
            picture.draft(None, (max(1, header.width // scale), max(1, header.height // scale)))
        picture.load()
        width, height = picture.size
        pixels = _upright_like(height, width, header.orientation)
        stored = _stored_view(pixels, header.orientation)
        rows = max(1, BAND_PIXELS // width)
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            stored[top:bottom] = _as_items(_rgb(picture.crop((0, top, width, bottom))))
        return pixels
    except (OSError, ValueError, SyntaxError, EOFError, IndexError) as error:
        reason = "truncated" if "truncated" in str(error) else "damaged"
        raise BadInput(f"the picture is {reason}: {error}") from None


def _upright_like(height: int, width: int, orientation: int) -> Pixels:
    """Room for the pixels of a picture that is stored with this height and width."""
    shape = (width, height, 3) if orientation >= 5 else (height, width, 3)
    return np.empty(shape, np.uint8)


def _stored_view(upright: Pixels, orientation: int) -> NDArray[np.void]:
    """A view of an upright picture's pixels, as items, in the order in which the camera stored them."""
    items = _as_items(upright)
    rows, columns = ORIENTATION_TURNS[orientation]
    return (items.T if orientation >= 5 else items)[::rows, ::columns]


def _as_items(pixels: Pixels) -> NDArray[np.void]:
    """[height, width] of three bytes each, which are turned in half the time that bytes take."""
    items: NDArray[np.void] = pixels.view("V3")[..., 0]
    return items


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
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
    resized: Pixels = cv2.resize(pixels, (width, height), interpolation=method)  # type: ignore[assignment]
    return resized


def shrink(pixels: Pixels, width: int, height: int) -> Pixels:
    """Like :func:`resize`, for pictures of twice ``width`` and ``height`` or more, in half the time.

    Resized to the next whole multiple, then averaged in whole blocks. On pixels that were decoded smaller
    this comes closer to the average of the whole picture than INTER_AREA does, which takes shares of pixels.
    """
    across, down = -(-pixels.shape[1] // width), -(-pixels.shape[0] // height)
    try:
        import cv2
    except ImportError:
        return resize(pixels, width, height)
    multiple = cv2.resize(pixels, (across * width, down * height), interpolation=cv2.INTER_CUBIC)
    averaged: Pixels = cv2.resize(multiple, (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    return averaged


def _by_area(pixels: Pixels, width: int, height: int) -> Pixels:
    """The average of what each new pixel covers, as OpenCV's INTER_AREA has it; Pillow's box only nearly."""
    rows, columns = _area_weights(pixels.shape[0], height), _area_weights(pixels.shape[1], width)
    averaged = np.stack([rows @ pixels[..., channel] @ columns.T for channel in range(3)], axis=2)
    rounded: Pixels = np.rint(averaged).astype(np.uint8)
    return rounded


def _area_weights(old: int, new: int) -> NDArray[np.float32]:
    """[new, old]: the share of each old pixel in each new one, along one side."""
    edges, cells = np.linspace(0, old, new + 1)[:, None], np.arange(old)
    covered = np.minimum(edges[1:], cells + 1) - np.maximum(edges[:-1], cells)
    shares: NDArray[np.float32] = (covered.clip(0) * new / old).astype(np.float32)
    return shares


def split(pixels: Pixels) -> Sequence[Pixels]:
    """The channels of [height, width, 3], each [height, width]."""
    try:
        import cv2
    except ImportError:
        return [pixels[..., channel] for channel in range(3)]
    planes: Sequence[Pixels] = cv2.split(pixels)  # type: ignore[assignment]
    return planes


def _rgb(picture: Image.Image) -> Pixels:
    if picture.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip it
        grey = np.asarray(picture).astype(np.uint32) >> 8
        return np.repeat(np.minimum(grey, 255).astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.asarray(picture.convert("RGB"))
