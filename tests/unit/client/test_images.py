"""Decoding pictures to pixels, the formats of cameras and programs and no others; drawing on them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from sm.client import images
from sm.client.images import Label, colour, decode, draw, resize, split, text_colour
from sm.client.picture_header import MAX_PIXELS, read_header
from sm.errors import BadInput
from tests.support.hostile_pictures import PNG, encode, png_chunk
from tests.support.oriented_pictures import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    exif_orientation,
    six_blocks,
    stored_picture,
)

BLOCK = 16


def six_blocks_file(image_format: str = "PNG", **options: Any) -> bytes:
    return encode(Image.fromarray(six_blocks(BLOCK)), image_format, **options)


def raw_png(width: int, height: int, bit_depth: int, colour_type: int, data: bytes) -> bytes:
    """Build a PNG of any bit depth and of colour type 0 (grey) or 2 (RGB)."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")
    return PNG + chunks


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_with_an_exif_orientation_is_decoded_upright(image_format: str, orientation: int) -> None:
    exif = exif_orientation(orientation)
    content = encode(stored_picture(orientation, BLOCK), image_format, quality=95, exif=exif)
    block_colours = decode(content)[BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK]
    assert block_colours.shape == (2, 3, 3)
    assert np.abs(block_colours.astype(int) - six_blocks(BLOCK)[::BLOCK, ::BLOCK]).max() <= 12


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 2}],
    ids=["baseline", "progressive", "no subsampling", "restart markers"],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("damage", ["none", "changed byte", "bytes after the end"])
def test_a_jpeg_has_the_same_pixels_as_in_pillow(mode: str, options: dict[str, Any], damage: str) -> None:
    noise = np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8)
    content = bytearray(encode(Image.fromarray(noise).convert(mode), "JPEG", **options))
    if damage == "changed byte":
        content[-400] ^= 0xFF
    elif damage == "bytes after the end":
        content += b"a film, as phones write it"
    expected = Image.open(io.BytesIO(content)).convert("RGB")
    assert np.array_equal(decode(bytes(content)), np.asarray(expected))


def test_without_turbojpeg_a_jpeg_has_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = exif_orientation(8)
    content = six_blocks_file("JPEG", exif=exif)
    expected = decode(content)
    # The gateway's Lambda has no simplejpeg.
    monkeypatch.setattr(images, "simplejpeg", None)
    assert np.array_equal(decode(content), expected)


def test_a_picture_converted_in_bands_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BAND_PIXELS", 3 * 48 * 7)
    rng = np.random.default_rng(3)
    rgba = rng.integers(0, 256, (100, 48, 4), np.uint8)
    exif = exif_orientation(6)
    pixels = decode(encode(Image.fromarray(rgba), "PNG", exif=exif))
    picture = Image.fromarray(rgba)
    on_white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    assert np.array_equal(pixels, np.asarray(on_white.transpose(Image.Transpose.ROTATE_270)))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_very_thin_pictures_are_decoded(size: tuple[int, int]) -> None:
    pixels = decode(encode(Image.new("RGB", size, RED), "PNG"))
    assert pixels.shape == (size[1], size[0], 3)
    assert (pixels == RED).all()


def row_of_pixels(mode: str, *pixels: object, palette: tuple[int, ...] = ()) -> Image.Image:
    picture = Image.new(mode, (len(pixels), 1))
    if palette:
        picture.putpalette(palette)
    for place, pixel in enumerate(pixels):
        picture.putpixel((place, 0), pixel)  # type: ignore[arg-type]
    return picture


BLACK, GREY = (0, 0, 0), (127, 127, 127)


KINDS_OF_PIXELS: dict[str, tuple[bytes, list[tuple[int, ...]]]] = {
    "one bit": (encode(row_of_pixels("1", 0, 1), "PNG"), [BLACK, WHITE]),
    "grey": (encode(row_of_pixels("L", 77), "PNG"), [(77,) * 3]),
    "16-bit grey": (raw_png(2, 1, 16, 0, b"\0\x12\xff\x80\x00"), [(0x12,) * 3, (0x80,) * 3]),
    "16-bit RGB": (raw_png(1, 1, 16, 2, b"\0\x12\x34\x80\x01\xff\xff"), [(0x12, 0x80, 0xFF)]),
    "transparent": (encode(row_of_pixels("RGBA", (*RED, 255), (*RED, 0)), "PNG"), [RED, WHITE]),
    "half": (encode(row_of_pixels("RGBA", (0, 0, 0, 128)), "WEBP", lossless=True), [GREY]),
    "grey with alpha": (encode(row_of_pixels("LA", (0, 255), (0, 0)), "PNG"), [BLACK, WHITE]),
    "transparent colour of a palette": (
        encode(row_of_pixels("P", 0, 1, 2, palette=(*RED, *GREEN, *BLUE)), "PNG", transparency=1),
        [RED, WHITE, BLUE],
    ),
    "transparent colour": (
        encode(row_of_pixels("RGB", RED, GREEN), "PNG", transparency=GREEN),
        [RED, WHITE],
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_PIXELS)
def test_every_kind_of_pixel_becomes_rgb_on_white(kind: str) -> None:
    content, expected = KINDS_OF_PIXELS[kind]
    assert decode(content).tolist() == [[list(pixel) for pixel in expected]]


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_error_for_a_truncated_picture_says_so(image_format: str, share: float) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    content = encode(Image.fromarray(noise), image_format)
    with pytest.raises(BadInput):
        decode(content[: int(len(content) * share)])


@pytest.mark.parametrize("size", [(30_000, 30_000), (10_000, 10_000), (MAX_PIXELS + 1, 1)])
def test_a_decompression_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    with pytest.raises(BadInput):
        read_header(raw_png(*size, 8, 2, b""))


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_picture_is_decoded_or_refused_as_bad_input(image_format: str, data: st.DataObject) -> None:
    exif = exif_orientation(6)
    content = bytearray(six_blocks_file(image_format, exif=exif))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode(bytes(content))
    except BadInput:
        return
    assert pixels.ndim == 3
    assert pixels.dtype == np.uint8


def test_shrinking_averages_and_enlarging_keeps_the_colours() -> None:
    chessboard = (np.indices((64, 64)).sum(0) % 2 * 200).astype(np.uint8)[..., None].repeat(3, 2)
    assert (resize(chessboard, 8, 8) == 100).all()
    assert resize(np.full((1, 1, 3), 9, np.uint8), 5, 7).tolist() == [[[9, 9, 9]] * 5] * 7


@pytest.mark.parametrize("size", [(24, 24), (31, 17), (400, 300)])
def test_without_opencv_resizing_and_splitting_give_the_same_pixels(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 120, 3), np.uint8)
    expected = resize(pixels, *size)
    # An environment without the package.
    monkeypatch.setattr(images, "cv2", None)
    difference = np.abs(resize(pixels, *size).astype(int) - expected)
    assert difference.max() <= 2
    for channel, expected_channel in zip(split(pixels), np.moveaxis(pixels, 2, 0), strict=True):
        assert (channel == expected_channel).all()


Pixels = NDArray[np.uint8]


def grey_picture(width: int, height: int) -> Pixels:
    return np.full((height, width, 3), 128, np.uint8)


def colour_extent(pixels: Pixels, class_id: int) -> tuple[int, ...]:
    """Return the left, top, right and bottom of the pixels in a class's colour."""
    y, x = np.nonzero((pixels == colour(class_id)).all(axis=2))
    return int(x.min()), int(y.min()), int(x.max()), int(y.max())


def count_letter_pixels(pixels: Pixels, class_id: int) -> int:
    """Count the pixels close to the text colour of a class's labels; the edges of letters are anti-aliased."""
    return int((np.abs(pixels.astype(int) - text_colour(colour(class_id))).sum(axis=2) < 200).sum())


def test_drawing_keeps_the_size_and_does_not_change_the_original() -> None:
    pixels = grey_picture(200, 100)
    drawn = draw(pixels, [Label((20, 30, 120, 90), "cat 0.93", 15)])
    assert drawn.shape == pixels.shape
    assert drawn.dtype == np.uint8
    assert (pixels == 128).all()


def test_a_box_is_drawn_along_its_edges_and_not_inside() -> None:
    drawn = draw(grey_picture(200, 100), [Label((20, 30, 120, 90), "", 15)])
    for y, x in ((60, 20), (60, 119), (89, 70)):
        assert tuple(drawn[y, x]) == colour(15)
    assert (drawn[40:80, 30:110] == 128).all()
    assert colour_extent(drawn, 15)[2:] == (119, 89)


def test_a_label_stands_above_its_box_readable_on_the_class_colour() -> None:
    drawn = draw(grey_picture(300, 200), [Label((20, 60, 280, 190), "cat 0.93", 15)])
    above = drawn[:60]
    assert colour_extent(above, 15)[1] > 30
    assert count_letter_pixels(above, 15) > 30


@pytest.mark.parametrize(
    "box", [(-5, -5, 40, 30), (180, 0, 200, 100), (0, 95, 200, 100), (190, 90, 260, 140)]
)
def test_the_label_stays_within_the_picture(box: tuple[float, float, float, float]) -> None:
    drawn = draw(grey_picture(200, 100), [Label(box, "cat", 15)])
    drawn_in_the_middle = draw(grey_picture(200, 100), [Label((50, 40, 150, 90), "cat", 15)])
    assert count_letter_pixels(drawn, 15) == count_letter_pixels(drawn_in_the_middle, 15) > 15


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 4000), (4000, 1), (5, 5)])
def test_a_picture_too_small_for_a_label_is_still_drawn_on(width: int, height: int) -> None:
    drawn = draw(grey_picture(width, height), [Label((0, 0, width, height), "hot dog 0.51", 52)])
    assert drawn.shape == (height, width, 3)
    assert (drawn != 128).any()
