"""Make pictures at and one step beyond the limits of what is decoded."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def many_scans(side: int, scans: int) -> bytes:
    """Return a progressive JPEG whose last scan, about 20 bytes, is repeated ``scans`` times."""
    content = encode(Image.new("RGB", (side, side), (200, 10, 10)), "JPEG", progressive=True)
    last = [found.start() for found in re.finditer(rb"\xff\xda", content)][-1]
    return content[:-2] + content[last:-2] * scans + content[-2:]


def with_segments(jpeg: bytes, segments: bytes) -> bytes:
    """Return the JPEG with ``segments`` inserted after its start marker."""
    return jpeg[:2] + segments + jpeg[2:]


def jpeg_segment(kind: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, kind, len(content) + 2) + content


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def large_png(width: int, height: int, *between: bytes, colour: int = 6) -> bytes:
    """A PNG of zeros, transparent black unless ``colour`` is another type; ``between``: further chunks."""
    row = bytes(1 + width * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour])
    packer = zlib.compressobj(1)
    packed = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    return PNG + header + b"".join(between) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def exif_of_many_tags(tags: int, size: int) -> bytes:
    """Return EXIF data in which each of ``tags`` entries refers to the same ``size`` bytes."""
    start = 8 + 2 + 12 * tags + 4
    entries = b"".join(struct.pack("<HHII", 0x1000 + tag, 7, size, start) for tag in range(tags))
    return b"II*\0" + struct.pack("<IH", 8, tags) + entries + bytes(4) + bytes(size)
