"""A picture that would take too much time or memory is refused by its header, with the number."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sm.client.images import decode
from sm.client.picture_header import (
    MAX_CHUNKS,
    MAX_COMPRESSED_CHUNKS,
    MAX_PIXELS,
    MAX_SCANS,
    MAX_SEGMENTS,
    XMP,
    read_header,
    without_metadata,
)
from sm.errors import BadInput
from tests.support.hostile_pictures import (
    PNG,
    encode,
    exif_of_many_tags,
    jpeg_segment,
    large_png,
    many_scans,
    png_chunk,
    with_segments,
)

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8))
BASELINE, PROGRESSIVE = encode(NOISE, "JPEG"), encode(NOISE, "JPEG", progressive=True)


def refuse(content: bytes) -> str:
    """Check that a picture is refused by its header, before any pixel is decoded. Return the reason."""
    with pytest.raises(BadInput) as caught:
        read_header(content)
    return caught.value.sentence


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    refuse(many_scans(4000, 5000))


def test_a_large_jpeg_may_have_fewer_scans_than_a_small_one() -> None:
    refuse(many_scans(8000, 10))
    assert decode(many_scans(200, MAX_SCANS - 10)).shape == (200, 200, 3)


@pytest.mark.parametrize(
    "content",
    [PROGRESSIVE, encode(NOISE.resize((4000, 3000)), "JPEG", progressive=True)],
    ids=["small", "12 megapixels"],
)
def test_progressive_pictures_from_real_encoders_are_decoded(content: bytes) -> None:
    assert (decode(content) == np.asarray(Image.open(io.BytesIO(content)))).all()


def test_scan_markers_inside_comments_exif_or_after_the_end_are_not_counted() -> None:
    scans = jpeg_segment(0xDA, b"\1\1\0\0\x3f\0") * (MAX_SCANS + 1)
    for content in (
        with_segments(PROGRESSIVE, jpeg_segment(0xFE, scans)),
        with_segments(PROGRESSIVE, jpeg_segment(0xE1, b"Exif\0\0" + scans)),
        PROGRESSIVE + scans,
    ):
        assert decode(content).shape == (61, 83, 3)


def test_scans_behind_fill_bytes_restarts_and_garbage_are_counted() -> None:
    """libjpeg skips fill bytes, restart markers and garbage to find the next marker."""
    bomb = many_scans(1000, 200)
    for skipped_bytes in (b"\xff\xff\xff", b"\xff\xd3", b"\0\0garbage"):
        refuse(bomb.replace(b"\xff\xda", skipped_bytes + b"\xff\xda"))


@pytest.mark.parametrize("marker", [0xFE, 0xE5, 0x01], ids=["comment", "APP5", "TEM"])
def test_a_jpeg_of_too_many_segments_is_refused(marker: int) -> None:
    refuse(with_segments(BASELINE, jpeg_segment(marker, b"") * (MAX_SEGMENTS + 1)))


def test_a_png_of_too_many_chunks_is_refused() -> None:
    refuse(large_png(8, 8, png_chunk(b"teSt", b"") * (MAX_CHUNKS + 1)))


@pytest.mark.parametrize(
    ("name", "head"),
    [(b"iCCP", b"p\0\0"), (b"zTXt", b"k\0\0"), (b"iTXt", b"k\0\1\0\0\0")],
    ids=["iCCP", "zTXt", "iTXt"],
)
def test_a_png_of_many_compressed_chunks_is_refused(name: bytes, head: bytes) -> None:
    compressed_chunk = png_chunk(name, head + zlib.compress(bytes(2**20 - 1), 9))
    refuse(large_png(8, 8, compressed_chunk * (MAX_COMPRESSED_CHUNKS + 1)))


@pytest.mark.parametrize(("name", "head"), [(b"iCCP", b"p\0\0"), (b"zTXt", b"k\0\0")], ids=["iCCP", "zTXt"])
def test_a_compressed_chunk_is_not_unpacked_whole(name: bytes, head: bytes) -> None:
    compressed = zlib.compress(bytes(2**26), 1)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput):
            decode(large_png(8, 8, png_chunk(name, head + compressed)))
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_a_png_with_two_sizes_is_refused_before_it_is_decoded() -> None:
    second_header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    with pytest.raises(BadInput, match="two sizes"):  # what Pillow then finds in it is another error
        decode(large_png(8, 8, second_header))


def test_a_webp_with_a_huge_canvas_is_refused() -> None:
    small = encode(NOISE, "WEBP", save_all=True, append_images=[NOISE.rotate(180)])
    assert small[12:16] == b"VP8X"
    huge = small[:24] + (16_000 - 1).to_bytes(3, "little") * 2 + small[30:]
    refuse(huge)


def patched(content: bytes, at: int, value: bytes) -> bytes:
    return content[:at] + value + content[at + len(value) :]


#: Of a JPEG, PNG and WebP: the picture, the offsets of width and height, and the bytes of each.
SIZES = {
    "JPEG": (BASELINE, BASELINE.index(b"\xff\xc0") + 7, BASELINE.index(b"\xff\xc0") + 5, 2),
    "progressive JPEG": (
        PROGRESSIVE,
        PROGRESSIVE.index(b"\xff\xc2") + 7,
        PROGRESSIVE.index(b"\xff\xc2") + 5,
        2,
    ),
    "PNG": (encode(NOISE, "PNG"), 16, 20, 4),
    "WEBP": (encode(NOISE, "WEBP"), 26, 28, 2),
}


@pytest.mark.parametrize("sides", ["width", "height", "both"])
@pytest.mark.parametrize("image_format", SIZES)
def test_a_picture_of_no_pixels_is_refused_by_its_header(image_format: str, sides: str) -> None:
    content, width_at, height_at, size = SIZES[image_format]
    for side, at in (("width", width_at), ("height", height_at)):
        if sides in (side, "both"):
            content = patched(content, at, bytes(size))
    refuse(content)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}], ids=["plain", "with EXIF"]
)
def test_the_size_of_a_webp_is_read_in_each_of_its_encodings(
    lossless: bool, options: dict[str, bytes]
) -> None:
    header = read_header(encode(NOISE, "WEBP", lossless=lossless, **options))
    assert (header.width, header.height) == (83, 61)


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_only_the_first_of_a_thousand_frames_is_decoded(image_format: str) -> None:
    frames = [Image.new("RGB", (64, 64), (index % 256, 0, 0)) for index in range(1000)]
    content = encode(frames[0], image_format, save_all=True, append_images=frames[1:], lossless=True)
    tracemalloc.start()
    try:
        assert (decode(content) == (0, 0, 0)).all()
        assert tracemalloc.get_traced_memory()[1] < 10 * 64 * 64 * 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_exif_whose_tags_all_refer_to_the_same_megabyte_is_not_read_whole(image_format: str) -> None:
    exif = exif_of_many_tags(1000, 2**20)
    content = (
        encode(NOISE, image_format, exif=exif)
        if image_format == "WEBP"
        else large_png(8, 8, png_chunk(b"eXIf", exif))
    )
    tracemalloc.start()
    try:
        decode(content)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_exif_in_many_segments_of_a_jpeg_is_not_read_whole(mode: str) -> None:
    exif = exif_of_many_tags(500, 2**20)
    parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
    segments = b"".join(jpeg_segment(0xE1, b"Exif\0\0" + part) for part in parts)
    # Pillow looks for the density in EXIF when there is no JFIF segment.
    content = with_segments(without_jfif(encode(NOISE.convert(mode), "JPEG")), segments)
    tracemalloc.start()
    try:
        decode(content)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def without_jfif(jpeg: bytes) -> bytes:
    size = int.from_bytes(jpeg[4:6], "big")
    return jpeg[:2] + jpeg[4 + size :] if jpeg[2:4] == b"\xff\xe0" else jpeg


def test_segments_that_do_not_change_the_pixels_are_removed_from_a_jpeg() -> None:
    cmyk = encode(NOISE.convert("CMYK"), "JPEG")
    metadata = jpeg_segment(0xE1, b"Exif\0\0") + jpeg_segment(0xE2, b"MPF\0") + jpeg_segment(0xFE, b"words")
    assert without_metadata(with_segments(cmyk, metadata)) == cmyk
    assert b"Adobe" in cmyk


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_without_exif_the_orientation_comes_from_xmp(image_format: str) -> None:
    packet = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    if image_format == "JPEG":
        content = with_segments(BASELINE, jpeg_segment(0xE1, XMP + packet))
    elif image_format == "PNG":
        png = encode(NOISE, "PNG")
        content = png[:33] + png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet) + png[33:]
    else:
        content = encode(NOISE, "WEBP", xmp=packet)
    assert decode(content).shape == (83, 61, 3)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xd8\xff\xd9", b"\xff\xd8\xff\xc0\0", PNG + b"\0" * 9, b"RIFF1234WEBPVP8 "],
    ids=["JPEG start and end", "JPEG frame marker", "PNG signature", "WebP chunk"],
)
def test_a_signature_without_a_picture_is_refused(content: bytes) -> None:
    refuse(content)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "HEIC"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + bytes(99), "AVIF"),
        *((encode(NOISE, name), name) for name in ("GIF", "TIFF", "BMP")),
        (b"%PDF-1.7\n", "PDF"),
        (base64.b64encode(BASELINE), "base64"),
        (base64.b64encode(encode(NOISE, "PNG")), "base64"),
        (b"<!doctype html>", "text"),
    ],
    ids=["HEIC", "AVIF", "GIF", "TIFF", "BMP", "PDF", "base64 JPEG", "base64 PNG", "HTML"],
)
def test_the_error_names_what_was_sent_instead_of_a_picture(content: bytes, named: str) -> None:
    assert named in refuse(content)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("animated", [False, True])
def test_the_error_for_a_truncated_webp_says_so(share: float, animated: bool) -> None:
    frames = {"save_all": True, "append_images": [NOISE.rotate(90)]} if animated else {}
    content = encode(NOISE, "WEBP", **frames)
    with pytest.raises(BadInput):
        decode(content[: int(len(content) * share)])


PICTURES = {
    "JPEG": BASELINE,
    "progressive JPEG": PROGRESSIVE,
    "PNG": encode(NOISE, "PNG"),
    "WebP": encode(NOISE, "WEBP"),
    "lossless WebP": encode(NOISE, "WEBP", lossless=True),
}


@pytest.mark.parametrize("kind", PICTURES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_or_contradictory_head_is_bounded_or_refused(kind: str, data: st.DataObject) -> None:
    """Sizes of 0 or 2^32, and a second head that contradicts the first, are among what is written there."""
    content = bytearray(PICTURES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(content), 700)))
        patch = data.draw(
            st.sampled_from([b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", bytes(content[:60])])
            | st.binary(max_size=8)
        )
        inserted = data.draw(st.booleans())
        content[place : place if inserted else place + len(patch)] = patch
    try:
        header = read_header(bytes(content))
    except BadInput:
        return
    assert 0 < header.width * header.height <= MAX_PIXELS
    assert 1 <= header.orientation <= 8
    try:
        height, width = decode(bytes(content)).shape[:2]
    except BadInput:
        return
    assert (width, height) == header.upright_size
