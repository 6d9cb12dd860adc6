"""Decoding pictures of cameras and programs to pixels, no larger than a model needs, and drawing on them."""

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
from sm.client.decode_budget import DecodeBudget
from sm.client.images import Label, colour, decode, draw, resize, split, text_colour
from sm.client.payloads import ImagePayload
from sm.client.picture_header import MAX_PIXELS, read_header
from sm.errors import BadInput, TooLarge
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

#: Pixels of a block's side; some stay visible at one eighth of the size.
BLOCK = 64
NOISE = np.random.default_rng(7).integers(0, 256, (61, 83, 4), np.uint8)
RGB = Image.fromarray(NOISE[..., :3])


def raw_png(width: int, height: int, bit_depth: int, colour_type: int, data: bytes) -> bytes:
    """Build a PNG of any bit depth and of colour type 0 (grey) or 2 (RGB)."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return PNG + b"".join(png_chunk(*part) for part in parts)


@pytest.fixture(params=["turbojpeg", "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pillow":
        monkeypatch.setattr(images, "simplejpeg", None)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(("image_format", "scale"), [("JPEG", 1), ("JPEG", 8), ("PNG", 1), ("WEBP", 1)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_with_an_exif_orientation_is_decoded_upright(
    image_format: str, scale: int, orientation: int
) -> None:
    picture, side = stored_picture(orientation, BLOCK), BLOCK // scale
    content = encode(picture, image_format, exif=exif_orientation(orientation), quality=95)
    pixels = decode(content, (3 * side, 2 * side))
    assert pixels.shape == (2 * side, 3 * side, 3)
    assert np.abs(pixels[side // 2 :: side, side // 2 :: side].astype(int) - six_blocks(1)).max() <= 6
    assert ImagePayload.model_validate({"image": content}).size == (3 * BLOCK, 2 * BLOCK)


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 2}],
    ids=["baseline", "progressive", "no subsampling", "restart markers"],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("damage", ["none", "changed byte", "bytes after the end", "no turbojpeg"])
def test_a_jpeg_has_the_same_pixels_as_in_pillow(
    monkeypatch: pytest.MonkeyPatch, mode: str, options: dict[str, Any], damage: str
) -> None:
    content = bytearray(encode(RGB.convert(mode), "JPEG", **options))
    if damage == "changed byte":
        content[-400] ^= 0xFF
    elif damage == "bytes after the end":
        content += b"a film, as phones write it"
    elif damage == "no turbojpeg":  # as in the gateway's Lambda
        monkeypatch.setattr(images, "simplejpeg", None)
    expected = Image.open(io.BytesIO(content)).convert("RGB")
    assert np.array_equal(decode(bytes(content)), np.asarray(expected))


def test_a_picture_converted_in_bands_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BAND_PIXELS", 3 * 48 * 7)
    picture = Image.fromarray(NOISE)
    pixels = decode(encode(picture, "PNG", exif=exif_orientation(6)))
    on_white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    assert np.array_equal(pixels, np.asarray(on_white.transpose(Image.Transpose.ROTATE_270)))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_very_thin_pictures_are_decoded_and_drawn_on(size: tuple[int, int]) -> None:
    pixels = decode(encode(Image.new("RGB", size, RED), "PNG"))
    assert (pixels == np.full((size[1], size[0], 3), RED)).all()
    assert (draw(pixels, [Label((0, 0, *size), "hot dog 0.51", 52)]) != pixels).any()


def row_of_pixels(mode: str, *pixels: Any, palette: tuple[int, ...] = ()) -> Image.Image:
    picture = Image.new(mode, (len(pixels), 1))
    if palette:
        picture.putpalette(palette)
    for place, pixel in enumerate(pixels):
        picture.putpixel((place, 0), pixel)
    return picture


BLACK, GREY = (0, 0, 0), (127, 127, 127)
PALETTE = row_of_pixels("P", 0, 1, 2, palette=(*RED, *GREEN, *BLUE))
KINDS_OF_PIXELS: dict[str, tuple[bytes, list[tuple[int, ...]]]] = {
    "one bit": (encode(row_of_pixels("1", 0, 1), "PNG"), [BLACK, WHITE]),
    "grey": (encode(row_of_pixels("L", 77), "PNG"), [(77,) * 3]),
    "16-bit grey": (raw_png(2, 1, 16, 0, b"\0\x12\xff\x80\x00"), [(0x12,) * 3, (0x80,) * 3]),
    "16-bit RGB": (raw_png(1, 1, 16, 2, b"\0\x12\x34\x80\x01\xff\xff"), [(0x12, 0x80, 0xFF)]),
    "transparent": (encode(row_of_pixels("RGBA", (*RED, 255), (*RED, 0)), "PNG"), [RED, WHITE]),
    "half": (encode(row_of_pixels("RGBA", (0, 0, 0, 128)), "WEBP", lossless=True), [GREY]),
    "grey with alpha": (encode(row_of_pixels("LA", (0, 255), (0, 0)), "PNG"), [BLACK, WHITE]),
    "transparent colour of a palette": (encode(PALETTE, "PNG", transparency=1), [RED, WHITE, BLUE]),
    "transparent colour": (encode(row_of_pixels("RGB", RED, GREEN), "PNG", transparency=GREEN), [RED, WHITE]),
}


@pytest.mark.parametrize("kind", KINDS_OF_PIXELS)
def test_every_kind_of_pixel_becomes_rgb_on_white(kind: str) -> None:
    content, expected = KINDS_OF_PIXELS[kind]
    assert decode(content).tolist() == [[list(pixel) for pixel in expected]]


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_error_for_a_truncated_picture_says_so(image_format: str, share: float) -> None:
    content = encode(RGB, image_format)
    with pytest.raises(BadInput):
        decode(content[: int(len(content) * share)])


@pytest.mark.parametrize("size", [(MAX_PIXELS + 1, 1), (1, MAX_PIXELS + 1), (8000, MAX_PIXELS // 8000 + 1)])
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(size: tuple[int, int]) -> None:
    with pytest.raises(BadInput):
        read_header(raw_png(*size, 8, 2, b""))


@pytest.mark.parametrize("size", [(24, 24), (31, 17), (400, 300)])
def test_without_opencv_resizing_and_splitting_give_the_same_pixels(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    pixels = np.ascontiguousarray(NOISE[..., :3])
    expected = resize(pixels, *size)
    for package in (vars(images)["cv2"], None):
        monkeypatch.setattr(images, "cv2", package)
        assert np.abs(resize(pixels, *size).astype(int) - expected).max() <= 2
        assert (np.stack(split(pixels)) == np.moveaxis(pixels, 2, 0)).all()


def smooth_picture(width: int, height: int) -> Image.Image:
    """Random content without fine detail, as a photograph has."""
    noise = np.random.default_rng(width * height).integers(0, 256, (height // 16 + 2, width // 16 + 2, 3))
    return Image.fromarray(noise.astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_picture_decoded_smaller_is_the_average_of_the_full_one(
    scale: int, options: dict[str, Any], mode: str
) -> None:
    content = encode(smooth_picture(320, 256).convert(mode), "JPEG", quality=95, **options)
    pixels = decode(content, (320 // scale, 256 // scale))
    assert pixels.shape == (256 // scale, 320 // scale, 3)
    average = resize(decode(content), 320 // scale, 256 // scale)
    assert np.abs(pixels.astype(int) - average).mean() < 2


@settings(max_examples=60)
@given(*[st.integers(1, 200)] * 4, st.sampled_from([1, 6]))
def test_a_picture_is_never_decoded_smaller_than_requested(
    width: int, height: int, wanted_width: int, wanted_height: int, orientation: int
) -> None:
    content = encode(Image.new("RGB", (width, height)), "JPEG", exif=exif_orientation(orientation))
    full, scaled = decode(content), decode(content, (wanted_width, wanted_height))
    assert scaled.shape[1] >= min(wanted_width, full.shape[1])
    assert scaled.shape[0] >= min(wanted_height, full.shape[0])
    scale = read_header(content).scale_for(wanted_width, wanted_height)
    assert scaled.shape == (-(-full.shape[0] // scale), -(-full.shape[1] // scale), 3)


@pytest.mark.parametrize(("image_format", "dtype"), [("PNG", "uint8"), ("PNG", "uint16"), ("WEBP", "uint8")])
def test_png_and_webp_are_decoded_in_full_size(image_format: str, dtype: str) -> None:
    picture = six_blocks(BLOCK) if dtype == "uint8" else np.full((64, 64), 0x80FF, dtype)
    content = encode(Image.fromarray(picture), image_format)
    assert np.array_equal(decode(content, (1, 1)), decode(content))


def test_the_budget_counts_the_scaled_size_but_that_of_a_progressive_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picture = Image.new("RGB", (1600, 1200), RED)
    content = encode(picture, "JPEG")
    monkeypatch.setattr(images, "DECODED", DecodeBudget(400 * 300 * 3))
    for size in (None, (401, 300)):
        with pytest.raises(TooLarge):
            decode(content, size)
    assert decode(content, (400, 300)).shape == (300, 400, 3)
    assert read_header(encode(picture, "JPEG", progressive=True)).decode_bytes(8) >= 1600 * 1200 * 3


def test_pixels_stay_in_full_size_after_a_scaled_read_and_the_size_is_known_without_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = ImagePayload.model_validate({"image": encode(smooth_picture(640, 480), "JPEG")})
    assert payload.pixels_at_least(160, 100).shape == (120, 160, 3)
    assert payload.pixels.shape == (480, 640, 3)
    assert payload.pixels is payload.pixels
    monkeypatch.setattr(images, "decode", None)
    fresh = ImagePayload.model_validate({"image": payload.image})
    assert fresh.size == payload.size == (640, 480)


def count_pixels(pixels: NDArray[np.uint8], like: tuple[int, ...]) -> int:
    """Count the pixels close to a colour; the edges of letters are anti-aliased."""
    return int((np.abs(pixels.astype(int) - like).sum(axis=2) < 200).sum())


def test_a_box_is_drawn_along_its_edges_and_its_label_stands_above() -> None:
    pixels = np.full((200, 300, 3), 128, np.uint8)
    drawn = draw(pixels, [Label((20, 60, 280, 190), "cat 0.93", 15)])
    assert (pixels == 128).all()
    assert drawn.shape == pixels.shape
    assert [tuple(drawn[y, x]) for y, x in ((100, 20), (100, 279), (189, 70))] == [colour(15)] * 3
    assert (drawn[70:180, 30:270] == 128).all()
    assert count_pixels(drawn[30:60], text_colour(colour(15))) > 30


@pytest.mark.parametrize(
    "box", [(-5, -5, 40, 30), (180, 0, 200, 100), (0, 95, 200, 100), (190, 90, 260, 140)]
)
def test_the_label_stays_within_the_picture(box: tuple[float, float, float, float]) -> None:
    picture, letters = np.full((100, 200, 3), 128, np.uint8), text_colour(colour(15))
    drawn = [draw(picture, [Label(each, "cat", 15)]) for each in (box, (50, 40, 150, 90))]
    assert count_pixels(drawn[0], letters) == count_pixels(drawn[1], letters) > 15
