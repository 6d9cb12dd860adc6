"""Decode pictures to upright RGB pixels, resize them, draw on them. Headers are checked before a decode."""

from __future__ import annotations

import colorsys
import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from sm.client.decode_budget import DECODED
from sm.client.picture_header import PictureHeader, not_a_picture, read_header, without_metadata
from sm.errors import BadInput
from sm.metrics import JPEG_FALLBACKS

try:
    import cv2
    import simplejpeg
except ImportError:  # the gateway's Lambda has Pillow alone
    cv2 = simplejpeg = None  # type: ignore[assignment]

#: Pixels that Pillow converts at a time, which bounds the memory of the conversion.
BAND_PIXELS = 2**18
#: For each EXIF orientation: the steps through an upright picture's rows and columns that give the stored
#: order. From 5 on the picture is transposed too.
ORIENTATION_STEPS = {
    1: (1, 1),
    2: (1, -1),
    3: (-1, -1),
    4: (-1, 1),
    5: (1, 1),
    6: (-1, 1),
    7: (-1, -1),
    8: (1, -1),
}
#: The marker that ends a JPEG. It cannot occur in the data of a scan, so a JPEG without it is truncated.
JPEG_END = b"\xff\xd9"

Pixels = NDArray[np.uint8]


def decode(
    content: bytes, at_least: tuple[int, int] | None = None, header: PictureHeader | None = None
) -> Pixels:
    """Decode a JPEG, PNG or WebP.

    The EXIF orientation is applied, transparent pixels are blended with white, and 16-bit samples keep their
    upper 8 bits. The memory counts against the worker's decode budget until the last reference to the pixels
    is gone.

    Args:
        content: The file's bytes.
        at_least: Width and height in pixels, upright, that are enough. A larger JPEG is decoded at a half, a
            quarter or an eighth of its size as long as both sides stay at least that long. Other pictures,
            and all pictures if None, are decoded in full.
        header: The result of :func:`~sm.client.picture_header.read_header`, if the header was read before.

    Returns:
        RGB uint8 [height, width, 3], upright.

    Raises:
        sm.errors.BadInput: The bytes are not picture, the picture is damaged or truncated, or it would take
            too long to decode.
        sm.errors.TooLarge: Decoding takes more memory than the whole decode budget.
        sm.errors.Overloaded: Other requests use the decode budget.

    Example::

        pixels = decode(Path("cat.jpg").read_bytes(), at_least=(256, 256))
    """
    header = header or read_header(content)
    scale = header.scale_for(*at_least) if at_least else 1
    size = header.decode_bytes(scale)
    model = DECODED.acquire(size)
    try:
        pixels = _decode(content, header, scale)
    except BaseException:
        DECODED.release(size, model)
        raise
    DECODED.keep(size, pixels, model)
    return pixels


def _decode(content: bytes, header: PictureHeader, scale: int) -> Pixels:
    # Phones append videos and depth maps, so the end marker need not be the last bytes.
    if header.quick and simplejpeg is not None and content.rfind(JPEG_END, header.scan_offset) >= 0:
        pixels = _by_turbojpeg(content, header, scale)
        if pixels is not None:
            return pixels
    if header.format == "JPEG":
        JPEG_FALLBACKS.inc()
    with warnings.catch_warnings():
        # A flaw in a caller's picture is not worth a line in the log.
        warnings.simplefilter("ignore")
        return _by_pillow(content, header, scale)


def _by_turbojpeg(content: bytes, header: PictureHeader, scale: int) -> Pixels | None:
    """Decode a JPEG with libjpeg-turbo; None if it refuses the header, so that Pillow may try.

    It takes a third of Pillow's time or less: Pillow keeps four bytes for each pixel and copies them twice.
    The pixels are the same, also where data is damaged, because Pillow decodes with libjpeg-turbo too.
    """
    # 0 turns scaling off. The full size would not: 7/8 of 7 pixels, rounded up, are 7 pixels.
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
    pixels = _allocate_upright(stored.shape[0], stored.shape[1], header.orientation)
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
        raise BadInput("the picture is damaged: it states two sizes") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise not_a_picture(content) from None
    try:
        if scale > 1:
            # Pillow finds the scale by dividing these sizes and rounding down.
            picture.draft(None, (max(1, header.width // scale), max(1, header.height // scale)))
        picture.load()
        width, height = picture.size
        pixels = _allocate_upright(height, width, header.orientation)
        stored = _stored_view(pixels, header.orientation)
        rows = max(1, BAND_PIXELS // width)
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            stored[top:bottom] = _as_items(_to_rgb(picture.crop((0, top, width, bottom))))
        return pixels
    except (OSError, ValueError, SyntaxError, EOFError, IndexError) as error:
        reason = "truncated" if "truncated" in str(error) else "damaged"
        raise BadInput(f"the picture is {reason}: {error}") from None


def _allocate_upright(height: int, width: int, orientation: int) -> Pixels:
    """Allocate the upright picture of one that is stored with this height and width."""
    shape = (width, height, 3) if orientation >= 5 else (height, width, 3)
    return np.empty(shape, np.uint8)


def _stored_view(upright: Pixels, orientation: int) -> NDArray[np.void]:
    """View an upright picture's pixels in the order in which the camera stored them."""
    items = _as_items(upright)
    rows, columns = ORIENTATION_STEPS[orientation]
    return (items.T if orientation >= 5 else items)[::rows, ::columns]


def _as_items(pixels: Pixels) -> NDArray[np.void]:
    """View [height, width, 3] as [height, width] of three-byte items: they are copied twice as fast."""
    items: NDArray[np.void] = pixels.view("V3")[..., 0]
    return items


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Resize a picture: by the average of areas if it gets smaller, bilinear if it gets larger.

    Args:
        pixels: uint8 [rows, columns, 3].
        width: Of the result, in pixels.
        height: Of the result, in pixels.

    Returns:
        uint8 [height, width, 3].
    """
    shrinks = width * height < pixels.shape[0] * pixels.shape[1]
    if cv2 is None:
        if shrinks:
            return _by_area(pixels, width, height)
        return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized: Pixels = cv2.resize(pixels, (width, height), interpolation=method)  # type: ignore[assignment]
    return resized


def shrink(pixels: Pixels, width: int, height: int) -> Pixels:
    """Resize a picture of at least twice ``width`` and ``height`` in half the time of :func:`resize`.

    The picture is resized to the nearest whole multiple, then averaged in whole blocks. The first step makes
    a side smaller by a fifth at most, so it skips no pixel. For a JPEG that was decoded at a smaller scale,
    the result is as close to the average of the full picture as that of OpenCV's INTER_AREA, which averages
    parts of pixels.

    Args:
        pixels: uint8 [rows, columns, 3].
        width: Of the result, in pixels.
        height: Of the result, in pixels.

    Returns:
        uint8 [height, width, 3].
    """
    if cv2 is None:
        return resize(pixels, width, height)
    across, down = max(2, round(pixels.shape[1] / width)), max(2, round(pixels.shape[0] / height))
    multiple = cv2.resize(pixels, (across * width, down * height), interpolation=cv2.INTER_CUBIC)
    averaged: Pixels = cv2.resize(multiple, (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    return averaged


def _by_area(pixels: Pixels, width: int, height: int) -> Pixels:
    """Average the area that each new pixel covers, as OpenCV's INTER_AREA does. Pillow's BOX differs."""
    rows, columns = _area_weights(pixels.shape[0], height), _area_weights(pixels.shape[1], width)
    averaged = np.stack([rows @ pixels[..., channel] @ columns.T for channel in range(3)], axis=2)
    rounded: Pixels = np.rint(averaged).astype(np.uint8)
    return rounded


def _area_weights(old: int, new: int) -> NDArray[np.float32]:
    """Return the weight of each old pixel in each new one along one side: float32 [new, old]."""
    edges, cells = np.linspace(0, old, new + 1)[:, None], np.arange(old)
    covered = np.minimum(edges[1:], cells + 1) - np.maximum(edges[:-1], cells)
    weights: NDArray[np.float32] = (covered.clip(0) * new / old).astype(np.float32)
    return weights


def split(pixels: Pixels) -> Sequence[Pixels]:
    """Split [height, width, 3] into its three channels, each [height, width]."""
    if cv2 is None:
        return [pixels[..., channel] for channel in range(3)]
    planes: Sequence[Pixels] = cv2.split(pixels)  # type: ignore[assignment]
    return planes


def _to_rgb(picture: Image.Image) -> Pixels:
    """Convert any of Pillow's modes to RGB uint8 [height, width, 3]."""
    if picture.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip it
        grey = np.asarray(picture).astype(np.uint32) >> 8
        return np.repeat(np.minimum(grey, 255).astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(picture.convert("RGB"))


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
