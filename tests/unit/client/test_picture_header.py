"""A picture that would take too much time or memory is refused by its header, before any pixel is decoded."""

from __future__ import annotations

import base64
import io
import struct
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
    MAX_SCANNED_PIXELS,
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
from tests.unit.client.memory import MIB, measured

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (61, 83, 3), np.uint8))
BASELINE, PROGRESSIVE = encode(NOISE, "JPEG"), encode(NOISE, "JPEG", progressive=True)
SCANS = jpeg_segment(0xDA, b"\1\1\0\0\x3f\0") * (MAX_SCANS + 1)
COMPRESSED = zlib.compress(bytes(2**20 - 1), 9)
PICTURES = {
    "JPEG": BASELINE,
    "progressive JPEG": PROGRESSIVE,
    "PNG": encode(NOISE, "PNG"),
    "WebP": encode(NOISE, "WEBP"),
    "lossless WebP": encode(NOISE, "WEBP", lossless=True),
    "WebP with EXIF": encode(NOISE, "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
}


def refuse(content: bytes) -> str:
    """Check that a picture is refused by its header. Return the reason."""
    with pytest.raises(BadInput) as caught:
        read_header(content)
    return caught.value.sentence


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    """libjpeg skips fill bytes, restart markers and garbage to find the next marker."""
    # A large one may have fewer than a small one.
    for side, most in ((200, MAX_SCANS), (4000, MAX_SCANNED_PIXELS // 4000**2)):
        repeated = most - many_scans(side, 0).count(b"\xff\xda")
        read_header(many_scans(side, repeated))
        refuse(many_scans(side, repeated + 1))
    repeated = MAX_SCANS - many_scans(200, 0).count(b"\xff\xda")
    assert decode(many_scans(200, repeated)).shape == (200, 200, 3)
    for skipped in (b"\xff\xff\xff", b"\xff\xd3", b"\0\0garbage"):
        read_header(many_scans(200, repeated).replace(b"\xff\xda", skipped + b"\xff\xda"))
        refuse(many_scans(200, repeated + 1).replace(b"\xff\xda", skipped + b"\xff\xda"))


@pytest.mark.parametrize(
    "content",
    [
        PROGRESSIVE,
        encode(NOISE.resize((4000, 3000)), "JPEG", progressive=True),
        with_segments(PROGRESSIVE, jpeg_segment(0xFE, SCANS)),
        with_segments(PROGRESSIVE, jpeg_segment(0xE1, b"Exif\0\0" + SCANS)),
        PROGRESSIVE + SCANS,
    ],
    ids=["small", "12 megapixels", "scans in a comment", "scans in EXIF", "scans after the end"],
)
def test_progressive_pictures_from_real_encoders_are_decoded(content: bytes) -> None:
    assert (decode(content) == np.asarray(Image.open(io.BytesIO(content)))).all()


ANIMATED = encode(NOISE, "WEBP", save_all=True, append_images=[NOISE.rotate(180)])
#: Each side is one less in the file: 8,000 and one row too many.
LARGE_CANVAS = (
    ANIMATED[:24]
    + (8000 - 1).to_bytes(3, "little")
    + (MAX_PIXELS // 8000).to_bytes(3, "little")
    + ANIMATED[30:]
)
HOSTILE = {
    "comments": with_segments(BASELINE, jpeg_segment(0xFE, b"") * (MAX_SEGMENTS + 1)),
    "APP5": with_segments(BASELINE, jpeg_segment(0xE5, b"") * (MAX_SEGMENTS + 1)),
    "TEM": with_segments(BASELINE, jpeg_segment(0x01, b"") * (MAX_SEGMENTS + 1)),
    "chunks": large_png(8, 8, png_chunk(b"teSt", b"") * (MAX_CHUNKS + 1)),
    **{
        name: large_png(8, 8, png_chunk(name.encode(), head + COMPRESSED) * (MAX_COMPRESSED_CHUNKS + 1))
        for name, head in (("iCCP", b"p\0\0"), ("zTXt", b"k\0\0"), ("iTXt", b"k\0\1\0\0\0"))
    },
    "a canvas of a row too many": LARGE_CANVAS,
    "JPEG start and end": b"\xff\xd8\xff\xd9",
    "JPEG frame marker": b"\xff\xd8\xff\xc0\0",
    "PNG signature": PNG + b"\0" * 9,
    "WebP chunk": b"RIFF1234WEBPVP8 ",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_costs_a_careless_decoder_much_is_refused(name: str) -> None:
    refuse(HOSTILE[name])


def test_a_png_with_two_sizes_is_refused_before_it_is_decoded() -> None:
    second = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))
    with pytest.raises(BadInput, match="two sizes"):  # what Pillow then finds in it is another error
        decode(large_png(8, 8, second))


@pytest.mark.parametrize(("name", "head"), [(b"iCCP", b"p\0\0"), (b"zTXt", b"k\0\0")], ids=["iCCP", "zTXt"])
def test_a_compressed_chunk_is_not_unpacked_whole(name: bytes, head: bytes) -> None:
    content = large_png(8, 8, png_chunk(name, head + zlib.compress(bytes(2**24), 1)))
    with measured() as peak, pytest.raises(BadInput):
        decode(content)
    assert peak.bytes < 10 * MIB


#: Offsets of width and height, and the bytes of each.
SIZES = {
    "JPEG": (BASELINE.index(b"\xff\xc0") + 7, BASELINE.index(b"\xff\xc0") + 5, 2),
    "progressive JPEG": (PROGRESSIVE.index(b"\xff\xc2") + 7, PROGRESSIVE.index(b"\xff\xc2") + 5, 2),
    "PNG": (16, 20, 4),
    "WebP": (26, 28, 2),
}


@pytest.mark.parametrize("kind", SIZES)
def test_a_picture_of_no_pixels_is_refused_by_its_header(kind: str) -> None:
    *places, size = SIZES[kind]
    for place in places:
        content = PICTURES[kind]
        refuse(content[:place] + bytes(size) + content[place + size :])


@pytest.mark.parametrize("image_format", ["PNG", "WEBP"])
def test_only_the_first_of_many_frames_is_decoded(image_format: str) -> None:
    frames = [Image.new("RGB", (64, 64), (index, 0, 0)) for index in range(200)]
    content = encode(frames[0], image_format, save_all=True, append_images=frames[1:], lossless=True)
    with measured() as peak:
        assert (decode(content) == (0, 0, 0)).all()
    assert peak.bytes < 10 * frames[0].width * frames[0].height * 4


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "RGB", "CMYK"])
def test_exif_whose_tags_all_refer_to_the_same_megabyte_is_not_read_whole(kind: str) -> None:
    exif = exif_of_many_tags(30, 2**20)
    if kind == "PNG":
        content = large_png(8, 8, png_chunk(b"eXIf", exif))
    elif kind == "WEBP":
        content = encode(NOISE, kind, exif=exif)
    else:
        parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
        segments = b"".join(jpeg_segment(0xE1, b"Exif\0\0" + part) for part in parts)
        jpeg = encode(NOISE.convert(kind), "JPEG")
        # Pillow looks for the density in EXIF when there is no JFIF segment.
        has_jfif = jpeg[2:4] == b"\xff\xe0"
        content = with_segments(
            jpeg[:2] + jpeg[4 + int.from_bytes(jpeg[4:6], "big") :] if has_jfif else jpeg, segments
        )
    with measured() as peak:
        decode(content)
    assert peak.bytes < 20 * MIB


def test_segments_that_do_not_change_the_pixels_are_removed_from_a_jpeg() -> None:
    cmyk = encode(NOISE.convert("CMYK"), "JPEG")
    metadata = jpeg_segment(0xE1, b"Exif\0\0") + jpeg_segment(0xE2, b"MPF\0") + jpeg_segment(0xFE, b"words")
    assert without_metadata(with_segments(cmyk, metadata)) == cmyk
    assert b"Adobe" in cmyk


PACKET = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
XMP_CHUNK = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + PACKET)


@pytest.mark.parametrize(
    "content",
    [
        with_segments(BASELINE, jpeg_segment(0xE1, XMP + PACKET)),
        PICTURES["PNG"][:33] + XMP_CHUNK + PICTURES["PNG"][33:],
        encode(NOISE, "WEBP", xmp=PACKET),
    ],
    ids=["JPEG", "PNG", "WebP"],
)
def test_without_exif_the_orientation_comes_from_xmp(content: bytes) -> None:
    assert decode(content).shape == (83, 61, 3)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "HEIC"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + bytes(99), "AVIF"),
        *((encode(NOISE, name), name) for name in ("GIF", "TIFF", "BMP")),
        (b"%PDF-1.7\n", "PDF"),
        (base64.b64encode(BASELINE), "base64"),
        (base64.b64encode(PICTURES["PNG"]), "base64"),
        (b"<!doctype html>", "text"),
    ],
    ids=["HEIC", "AVIF", "GIF", "TIFF", "BMP", "PDF", "base64 JPEG", "base64 PNG", "HTML"],
)
def test_the_error_names_what_was_sent_instead_of_a_picture(content: bytes, named: str) -> None:
    assert named in refuse(content)


@pytest.mark.parametrize("kind", PICTURES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_or_contradictory_head_is_bounded_or_refused(kind: str, data: st.DataObject) -> None:
    """Sizes of 0 or 2^32, and a second head that contradicts the first, are among what is written there."""
    content = bytearray(PICTURES[kind])
    odd = st.sampled_from([b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", bytes(content[:60])])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(content), 700)) | st.integers(0, len(content)))
        patch = data.draw(odd | st.binary(max_size=8))
        content[place : place if data.draw(st.booleans()) else place + len(patch)] = patch
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
