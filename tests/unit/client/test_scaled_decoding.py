"""A picture is decoded no larger than a model needs, and still shows the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sm.client import images
from sm.client.decode_budget import DecodeBudget
from sm.client.images import decode, resize
from sm.client.payloads import ImagePayload
from sm.client.picture_header import read_header
from sm.errors import TooLarge
from tests.support.hostile_pictures import encode
from tests.support.oriented_pictures import RED, exif_orientation, six_blocks, stored_picture

#: Pixels of a block's side; large enough to stay visible at one eighth of the size.
BLOCK = 64


def smooth_picture(width: int, height: int) -> Image.Image:
    """Random content without fine detail, as a photograph has."""
    noise = np.random.default_rng(width * height).integers(0, 256, (height // 16 + 2, width // 16 + 2, 3))
    return Image.fromarray(noise.astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(params=["turbojpeg", "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pillow":
        monkeypatch.setattr(images, "simplejpeg", None)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_applied_when_decoding_smaller(orientation: int) -> None:
    picture = stored_picture(orientation, BLOCK)
    content = encode(picture, "JPEG", exif=exif_orientation(orientation), quality=95)
    pixels = decode(content, (3 * BLOCK // 8, 2 * BLOCK // 8))
    assert pixels.shape == (2 * BLOCK // 8, 3 * BLOCK // 8, 3)
    middles = pixels[BLOCK // 16 :: BLOCK // 8, BLOCK // 16 :: BLOCK // 8].astype(int)
    assert np.abs(middles - six_blocks(1)).max() <= 6
    assert ImagePayload.model_validate({"image": content}).size == (3 * BLOCK, 2 * BLOCK)


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
