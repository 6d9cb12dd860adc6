"""What would take too long or too much is refused by what stands before the pixels, with the number."""

from __future__ import annotations

import base64
import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from sm.client.images import decode
from sm.client.picture_header import (
    MAX_CHUNKS,
    MAX_COMPRESSED_CHUNKS,
    MAX_SCANS,
    MAX_SEGMENTS,
    XMP,
    read_header,
    without_metadata,
)
from sm.errors import BadInput
from tests.support.hostile_pictures import (
    PNG,
    chunk,
    encoded,
    exif_of_many_tags,
    large_png,
    many_scans,
    segment,
    with_segments,
)

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8))
BASELINE, PROGRESSIVE = encoded(NOISE, "JPEG"), encoded(NOISE, "JPEG", progressive=True)
#: Seconds in which what is refused unread is refused, on the slowest machine.
AT_ONCE = 2.0


def refused(content: bytes) -> str:
    """Why."""
    began = time.process_time()
    with pytest.raises(BadInput) as caught:
        decode(content)
    assert time.process_time() - began < AT_ONCE
    return caught.value.sentence


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    assert "more than 100 scans" in refused(many_scans(4000, 5000))


def test_a_large_jpeg_may_have_fewer_scans_than_a_small_one() -> None:
    assert "20 scans of 8000x8000 pixels; at most 1,000,000,000" in refused(many_scans(8000, 10))
    assert decode(many_scans(200, MAX_SCANS - 10)).shape == (200, 200, 3)


@pytest.mark.parametrize(
    "content", [PROGRESSIVE, encoded(NOISE.resize((4000, 3000)), "JPEG", progressive=True)]
)
def test_what_encoders_write_is_decoded(content: bytes) -> None:
    assert (decode(content) == np.asarray(Image.open(io.BytesIO(content)))).all()


def test_a_scan_in_the_data_of_something_else_is_no_scan() -> None:
    scans = segment(0xDA, b"\1\1\0\0\x3f\0") * (MAX_SCANS + 1)
    for content in (
        with_segments(PROGRESSIVE, segment(0xFE, scans)),
        with_segments(PROGRESSIVE, segment(0xE1, b"Exif\0\0" + scans)),
        PROGRESSIVE + scans,
    ):
        assert decode(content).shape == (61, 83, 3)


def test_a_scan_behind_odd_bytes_is_a_scan() -> None:
    """libjpeg looks for the next marker as well, over fill bytes, restarts and garbage."""
    bomb = many_scans(1000, 200)
    for odd in (b"\xff\xff\xff", b"\xff\xd3", b"\0\0garbage"):
        assert "scans" in refused(bomb.replace(b"\xff\xda", odd + b"\xff\xda"))


@pytest.mark.parametrize("kind", [0xFE, 0xE5, 0x01])
def test_a_jpeg_of_a_million_segments_is_refused(kind: int) -> None:
    assert f"more than {MAX_SEGMENTS:,} segments" in refused(
        with_segments(BASELINE, segment(kind, b"") * 1_000_000)
    )


def test_a_png_of_a_million_chunks_is_refused() -> None:
    many = large_png(8, 8, chunk(b"teSt", b"") * 1_000_000)
    assert f"more than {MAX_CHUNKS:,} chunks" in refused(many)


@pytest.mark.parametrize(
    ("name", "head"), [(b"iCCP", b"p\0\0"), (b"zTXt", b"k\0\0"), (b"iTXt", b"k\0\1\0\0\0")]
)
def test_a_png_of_many_packed_texts_is_refused(name: bytes, head: bytes) -> None:
    bomb = chunk(name, head + zlib.compress(bytes(2**20 - 1), 9))
    many = large_png(8, 8, bomb * (MAX_COMPRESSED_CHUNKS + 1))
    assert f"more than {MAX_COMPRESSED_CHUNKS} chunks" in refused(many)


@pytest.mark.parametrize(("name", "head"), [(b"iCCP", b"p\0\0"), (b"zTXt", b"k\0\0")])
def test_a_packed_text_is_not_unpacked_whole(name: bytes, head: bytes) -> None:
    packed = zlib.compress(bytes(2**26), 1)
    tracemalloc.start()
    try:
        refused(large_png(8, 8, chunk(name, head + packed)))
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_a_png_that_says_two_sizes_is_refused_before_it_is_decoded() -> None:
    second = chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    assert "two sizes" in refused(large_png(8, 8, second))


def test_a_webp_is_refused_by_its_canvas() -> None:
    small = encoded(NOISE, "WEBP", save_all=True, append_images=[NOISE.rotate(180)])
    assert small[12:16] == b"VP8X"
    huge = small[:24] + (16_000 - 1).to_bytes(3, "little") * 2 + small[30:]
    assert "16000x16000 pixels" in refused(huge)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("options", [{}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}])
def test_the_size_of_a_webp_is_read_in_each_of_its_forms(lossless: bool, options: dict[str, bytes]) -> None:
    header = read_header(encoded(NOISE, "WEBP", lossless=lossless, **options))
    assert (header.width, header.height) == (83, 61)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_thousand_frames_cost_what_the_first_one_does(kind: str) -> None:
    frames = [Image.new("RGB", (64, 64), (number % 256, 0, 0)) for number in range(1000)]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    began = time.process_time()
    assert (decode(content) == (0, 0, 0)).all()
    assert time.process_time() - began < AT_ONCE


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_exif_whose_tags_all_stand_for_the_same_megabytes_is_not_read_whole(kind: str) -> None:
    exif = exif_of_many_tags(1000, 2**20)
    content = encoded(NOISE, kind, exif=exif) if kind == "WEBP" else large_png(8, 8, chunk(b"eXIf", exif))
    tracemalloc.start()
    try:
        decode(content)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_exif_in_many_segments_of_a_jpeg_is_not_read_whole(mode: str) -> None:
    exif = exif_of_many_tags(500, 2**20)
    parts = [exif[at : at + 60_000] for at in range(0, len(exif), 60_000)]
    segments = b"".join(segment(0xE1, b"Exif\0\0" + part) for part in parts)
    # Without JFIF's density Pillow looks for it in EXIF.
    content = with_segments(without_jfif(encoded(NOISE.convert(mode), "JPEG")), segments)
    tracemalloc.start()
    try:
        decode(content)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def without_jfif(jpeg: bytes) -> bytes:
    size = int.from_bytes(jpeg[4:6], "big")
    return jpeg[:2] + jpeg[4 + size :] if jpeg[2:4] == b"\xff\xe0" else jpeg


def test_what_does_not_change_its_pixels_is_taken_out_of_a_jpeg() -> None:
    ink = encoded(NOISE.convert("CMYK"), "JPEG")
    added = segment(0xE1, b"Exif\0\0") + segment(0xE2, b"MPF\0") + segment(0xFE, b"words")
    assert without_metadata(with_segments(ink, added)) == ink
    assert b"Adobe" in ink


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_xmp_says_which_side_is_up_where_exif_does_not(kind: str) -> None:
    packet = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    if kind == "JPEG":
        content = with_segments(BASELINE, segment(0xE1, XMP + packet))
    elif kind == "PNG":
        plain = encoded(NOISE, "PNG")
        content = plain[:33] + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet) + plain[33:]
    else:
        content = encoded(NOISE, "WEBP", xmp=packet)
    assert decode(content).shape == (83, 61, 3)


@pytest.mark.parametrize(
    "content", [b"\xff\xd8\xff\xd9", b"\xff\xd8\xff\xc0\0", PNG + b"\0" * 9, b"RIFF1234WEBPVP8 "]
)
def test_a_start_and_nothing_more_is_no_picture(content: bytes) -> None:
    assert "not a JPEG, PNG or WebP" in refused(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "HEIC, which has to be converted"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + bytes(99), "AVIF, which has to be converted"),
        (encoded(NOISE, "GIF"), "GIF, which has to be converted"),
        (encoded(NOISE, "TIFF"), "TIFF, which has to be converted"),
        (encoded(NOISE, "BMP"), "BMP, which has to be converted"),
        (b"%PDF-1.7\n", "PDF, which has to be converted"),
        (base64.b64encode(BASELINE), "encode once in JSON"),
        (base64.b64encode(encoded(NOISE, "PNG")), "encode once in JSON"),
        (b"<!doctype html>", "a text"),
    ],
)
def test_what_was_sent_in_place_of_a_picture_is_named(content: bytes, words: str) -> None:
    sentence = refused(content)
    assert sentence.startswith("the bytes are not a JPEG, PNG or WebP picture: they are ")
    assert words in sentence


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("animated", [False, True])
def test_a_truncated_webp_is_said_to_be_truncated(share: float, animated: bool) -> None:
    frames = {"save_all": True, "append_images": [NOISE.rotate(90)]} if animated else {}
    content = encoded(NOISE, "WEBP", **frames)
    with pytest.raises(BadInput, match="truncated: it has"):
        decode(content[: int(len(content) * share)])
