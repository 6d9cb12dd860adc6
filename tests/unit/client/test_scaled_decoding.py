"""A picture is decoded no larger than a model needs, and still shows the same."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from sm.client import images
from sm.client.decode_budget import DecodeBudget
from sm.client.images import decode, resize, shrink
from sm.client.payloads import ImagePayload
from sm.client.picture_header import read_header
from sm.errors import TooLarge
from tests.support.hostile_pictures import encode
from tests.support.oriented_pictures import RED, exif_orientation, six_blocks, stored_picture

#: Pixels of a block's side; large enough to stay visible at one eighth of the size.
BLOCK = 64
#: The width and height of the blocks at one eighth.
EIGHTH_SIZE = (3 * BLOCK // 8, 2 * BLOCK // 8)


def picture_with_orientation(orientation: int) -> bytes:
    exif = exif_orientation(orientation)
    return encode(stored_picture(orientation, BLOCK), "JPEG", exif=exif, quality=95)


def block_colours(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the colour in the middle of each of the six blocks."""
    step = pixels.shape[0] // 2
    return pixels[step // 2 :: step, step // 2 :: step].astype(int)


def smooth_picture(width: int, height: int) -> Image.Image:
    """Random content without fine detail, as a photograph has."""
    noise = np.random.default_rng(width * height).integers(0, 256, (height // 16 + 2, width // 16 + 2, 3))
    return Image.fromarray(noise.astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("turbojpeg", [True, False])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_applied_when_decoding_smaller(
    monkeypatch: pytest.MonkeyPatch, orientation: int, turbojpeg: bool
) -> None:
    if not turbojpeg:
        monkeypatch.setattr(images, "simplejpeg", None)
    content = picture_with_orientation(orientation)
    pixels = decode(content, EIGHTH_SIZE)
    assert pixels.shape == (*EIGHTH_SIZE[::-1], 3)
    assert np.abs(block_colours(pixels) - six_blocks(BLOCK)[::BLOCK, ::BLOCK]).max() <= 6
    assert ImagePayload.model_validate({"image": content}).size == (3 * BLOCK, 2 * BLOCK)


@pytest.mark.parametrize("turbojpeg", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}],
    ids=["baseline", "progressive", "no subsampling"],
)
@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_picture_decoded_smaller_is_the_average_of_the_full_one(
    monkeypatch: pytest.MonkeyPatch, scale: int, options: dict[str, Any], mode: str, turbojpeg: bool
) -> None:
    if not turbojpeg:
        monkeypatch.setattr(images, "simplejpeg", None)
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
    exif = exif_orientation(orientation)
    content = encode(Image.new("RGB", (width, height)), "JPEG", exif=exif)
    full, scaled = decode(content), decode(content, (wanted_width, wanted_height))
    assert scaled.shape[1] >= min(wanted_width, full.shape[1])
    assert scaled.shape[0] >= min(wanted_height, full.shape[0])
    scale = read_header(content).scale_for(wanted_width, wanted_height)
    assert scaled.shape == (-(-full.shape[0] // scale), -(-full.shape[1] // scale), 3)


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_png_and_webp_are_decoded_in_full_size(image_format: str) -> None:
    content = encode(Image.fromarray(six_blocks(BLOCK)), image_format)
    assert np.array_equal(decode(content, (1, 1)), decode(content))


def test_a_16_bit_png_is_decoded_in_full_size() -> None:
    grey = Image.fromarray(np.full((64, 64), 0x80FF, np.uint16))
    assert (decode(encode(grey, "PNG"), (8, 8)) == 0x80).all()


def test_the_budget_counts_the_scaled_size(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(Image.new("RGB", (1600, 1200), RED), "JPEG")
    budget = DecodeBudget(400 * 300 * 3)
    monkeypatch.setattr(images, "DECODED", budget)
    with pytest.raises(TooLarge):
        decode(content)
    small = decode(content, (400, 300))
    with pytest.raises(TooLarge):
        decode(content, (401, 300))
    assert small.shape == (300, 400, 3)


def test_a_progressive_picture_counts_its_full_size_at_every_scale() -> None:
    picture = Image.new("RGB", (1600, 1200), RED)
    baseline, progressive = (
        read_header(encode(picture, "JPEG", progressive=option)) for option in (False, True)
    )
    assert baseline.decode_bytes(8) == 200 * 150 * 3
    assert progressive.decode_bytes(8) >= 1600 * 1200 * 3


def test_bytes_after_the_end_of_a_jpeg_do_not_slow_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(smooth_picture(640, 480), "JPEG")
    expected = decode(content, (80, 60))
    monkeypatch.setattr(images, "_by_pillow", None)
    assert np.array_equal(decode(content + b"a film" * 1000, (80, 60)), expected)


def test_the_size_is_known_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = ImagePayload.model_validate({"image": encode(smooth_picture(640, 480), "JPEG")})
    monkeypatch.setattr(images, "decode", None)
    assert payload.size == (640, 480)


def test_pixels_stay_in_full_size_after_a_scaled_read() -> None:
    payload = ImagePayload.model_validate({"image": encode(smooth_picture(640, 480), "JPEG")})
    assert payload.pixels_at_least(160, 100).shape == (120, 160, 3)
    assert payload.pixels.shape == (480, 640, 3)
    assert payload.size == (640, 480)


def test_without_opencv_shrinking_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.asarray(smooth_picture(640, 480))
    expected = shrink(pixels, 160, 120)
    monkeypatch.setattr(images, "cv2", None)
    assert np.abs(shrink(pixels, 160, 120).astype(int) - expected).max() <= 2


def test_turbojpeg_and_pillow_decode_to_the_same_pixels() -> None:
    content = encode(smooth_picture(641, 479), "JPEG")
    expected = Image.open(io.BytesIO(content))
    expected.draft(None, (160, 119))
    assert np.array_equal(decode(content, (160, 119)), np.asarray(expected))
