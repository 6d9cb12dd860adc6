"""Pictures to pixels: every kind a camera or a program writes, and everything that is none."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from sm.client import images
from sm.client.images import decode, resize, split
from sm.client.picture_header import MAX_PIXELS
from sm.errors import BadInput

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
BLOCK = 16

#: How a camera that notes this orientation stored the picture: the inverse of what must be applied.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def blocks() -> NDArray[np.uint8]:
    """Three columns of two blocks: no turn and no flip leaves them as they are."""
    cells = np.array([[RED, GREEN, BLUE], [WHITE, (0, 0, 0), (128, 128, 128)]], np.uint8)
    return np.asarray(cells.repeat(BLOCK, 0).repeat(BLOCK, 1))


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def plain(kind: str = "PNG", **options: Any) -> bytes:
    return encoded(Image.fromarray(blocks()), kind, **options)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def raw_png(width: int, height: int, depth: int, colour: int, data: bytes) -> bytes:
    """A PNG with a header of our own, 8 or 16 bits deep, of colour type 0 (grey) or 2 (RGB)."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [("PNG", {}, 0), ("WEBP", {"lossless": True}, 0), ("JPEG", {"quality": 95, "subsampling": 0}, 4)],
)
def test_a_picture_keeps_its_colours(kind: str, options: dict[str, Any], tolerance: int) -> None:
    found = decode(plain(kind, **options))
    assert found.dtype == np.uint8
    assert found.shape == (2 * BLOCK, 3 * BLOCK, 3)
    assert np.abs(found.astype(int) - blocks()).max() <= tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", sorted(STORED))
def test_a_turned_picture_comes_out_upright(kind: str, orientation: int) -> None:
    stored, turn = Image.fromarray(blocks()), STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(stored if turn is None else stored.transpose(turn), kind, quality=95, exif=exif)
    middles = decode(content)[BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK]
    assert middles.shape == (2, 3, 3)
    assert np.abs(middles.astype(int) - blocks()[::BLOCK, ::BLOCK]).max() <= 12


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 2}]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("damage", ["none", "data", "behind"])
def test_the_pixels_of_a_jpeg_are_pillows(mode: str, options: dict[str, Any], damage: str) -> None:
    noise = np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8)
    content = bytearray(encoded(Image.fromarray(noise).convert(mode), "JPEG", **options))
    if damage == "data":
        content[-400] ^= 0xFF
    elif damage == "behind":
        content += b"a film, as phones write it"
    expected = Image.open(io.BytesIO(content)).convert("RGB")
    assert np.array_equal(decode(bytes(content)), np.asarray(expected))


def test_without_turbojpeg_a_jpeg_is_decoded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    content = plain("JPEG", exif=exif)
    usual = decode(content)
    # As it is in the gateway's Lambda.
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert np.array_equal(decode(content), usual)


def test_a_picture_of_several_bands_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BAND_PIXELS", 3 * 48 * 7)
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (100, 48, 4), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(encoded(Image.fromarray(pixels), "PNG", exif=exif))
    layer = Image.fromarray(pixels)
    white = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    assert np.array_equal(found, np.asarray(white.transpose(Image.Transpose.ROTATE_270)))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_the_thinnest_pictures_are_pictures(size: tuple[int, int]) -> None:
    found = decode(encoded(Image.new("RGB", size, RED), "PNG"))
    assert found.shape == (size[1], size[0], 3)
    assert (found == RED).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_becomes_three_equal_channels(kind: str) -> None:
    found = decode(encoded(Image.new("L", (20, 10), 77), kind))
    assert found.shape == (10, 20, 3)
    assert (found == 77).all()


def test_black_and_white_is_black_and_white() -> None:
    picture = Image.new("1", (8, 8), 0)
    picture.putpixel((3, 2), 1)
    found = decode(encoded(picture, "PNG"))
    assert found[2, 3].tolist() == [255, 255, 255]
    assert found.sum() == 3 * 255


def test_of_16_bit_grey_the_upper_8_bits_count() -> None:
    values = np.array([[0x0000, 0x12FF], [0x8000, 0xFFFF]], ">u2")
    data = b"".join(b"\0" + row.tobytes() for row in values)
    found = decode(raw_png(2, 2, 16, 0, data))
    assert found[..., 0].tolist() == [[0x00, 0x12], [0x80, 0xFF]]
    assert (found == found[..., :1]).all()


def test_of_16_bit_rgb_the_upper_8_bits_count() -> None:
    data = b"\0" + np.array([0x1234, 0x8001, 0xFFFF], ">u2").tobytes()
    assert decode(raw_png(1, 1, 16, 2, data)).tolist() == [[[0x12, 0x80, 0xFF]]]


def test_a_cmyk_jpeg_becomes_rgb() -> None:
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow make red
    found = decode(encoded(ink, "JPEG", quality=95))
    assert np.abs(found.astype(int) - RED).max() <= 4


def test_what_is_transparent_is_white() -> None:
    picture = Image.new("RGBA", (2, 1), (*RED, 255))
    picture.putpixel((1, 0), (*RED, 0))
    assert decode(encoded(picture, "PNG")).tolist() == [[list(RED), list(WHITE)]]


def test_what_is_half_transparent_is_half_white() -> None:
    found = decode(encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), "WEBP", lossless=True))
    assert found.tolist() == [[[127, 127, 127]]]


def test_grey_with_alpha_lies_on_white() -> None:
    picture = Image.new("LA", (2, 1), (0, 255))
    picture.putpixel((1, 0), (0, 0))
    assert decode(encoded(picture, "PNG")).tolist() == [[[0, 0, 0], list(WHITE)]]


def test_a_palette_with_a_transparent_colour_lies_on_white() -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([*RED, *GREEN, *BLUE])
    for place in range(3):
        picture.putpixel((place, 0), place)
    found = decode(encoded(picture, "PNG", transparency=1))
    assert found.tolist() == [[list(RED), list(WHITE), list(BLUE)]]


def test_a_transparent_colour_of_an_rgb_picture_lies_on_white() -> None:
    picture = Image.new("RGB", (2, 1), RED)
    picture.putpixel((1, 0), GREEN)
    found = decode(encoded(picture, "PNG", transparency=GREEN))
    assert found.tolist() == [[list(RED), list(WHITE)]]


def test_of_an_animation_the_first_picture_counts() -> None:
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)
    content = encoded(first, "WEBP", save_all=True, append_images=[second], lossless=True)
    assert (decode(content) == RED).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_a_truncated_picture_is_refused(kind: str, kept: float) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    content = encoded(Image.fromarray(noise), kind)
    with pytest.raises(BadInput):
        decode(content[: int(len(content) * kept)])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_truncated_picture_is_called_so(kind: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    content = encoded(Image.fromarray(noise), kind)
    with pytest.raises(BadInput, match="the picture is truncated"):
        decode(content[: len(content) // 2])


@pytest.mark.parametrize("size", [(30_000, 30_000), (10_000, 10_000), (MAX_PIXELS + 1, 1)])
def test_a_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="pixels; at most 64,000,000"):
        decode(raw_png(*size, 8, 2, b""))


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_kinds_of_picture_are_refused(kind: str) -> None:
    with pytest.raises(BadInput, match="not a JPEG, PNG or WebP"):
        decode(plain(kind))


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"\xff\xd8\xff", b"hello", b"\x89PNG\r\n\x1a\n", bytes(4096)]
)
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput):
        decode(content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_picture_is_pixels_or_an_error_of_ours(kind: str, data: st.DataObject) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = bytearray(plain(kind, exif=exif))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(content))
    except BadInput:
        return
    assert found.ndim == 3
    assert found.dtype == np.uint8


def test_shrinking_averages_and_growing_keeps_the_colours() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 200).astype(np.uint8)[..., None].repeat(3, 2)
    assert (resize(board, 8, 8) == 100).all()
    assert resize(np.full((1, 1, 3), 9, np.uint8), 5, 7).tolist() == [[[9, 9, 9]] * 5] * 7


@pytest.mark.parametrize("size", [(24, 24), (31, 17), (400, 300)])
def test_without_opencv_a_picture_is_resized_alike(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 120, 3), np.uint8)
    usual = resize(pixels, *size)
    # As it is where the package is not installed.
    monkeypatch.setitem(sys.modules, "cv2", None)
    difference = np.abs(resize(pixels, *size).astype(int) - usual)
    assert difference.max() <= 2
    assert all(
        (ours == theirs).all() for ours, theirs in zip(split(pixels), np.moveaxis(pixels, 2, 0), strict=True)
    )
