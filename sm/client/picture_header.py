"""Read a picture's header: its size and orientation, and the memory that decoding it takes.

A few bytes can claim many pixels, scans of a JPEG or chunks of a PNG. All of them are limited here, before
anything is decoded.
"""

from __future__ import annotations

import math
import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sm.errors import BadInput

#: More pixels than any camera's picture; 30,000 x 30,000 in a small PNG would be 2.7 GB of RGB.
MAX_PIXELS = 64_000_000
#: Scans of a JPEG. Encoders write 10 to 13 of them, and the decoder goes through all pixels for each.
MAX_SCANS = 100
#: Pixels of a JPEG times its scans. That many take about 2 s to decode.
MAX_SCANNED_PIXELS = 1_000_000_000
#: Segments of a JPEG: the largest colour profile has 255, and each scan a few.
MAX_SEGMENTS = 1_000
#: Chunks of a PNG or WebP. Pillow reads each by itself, and an IDAT chunk usually has 8 KiB or more.
MAX_CHUNKS = 20_000
#: Chunks of a PNG with compressed text or a colour profile. Pillow unpacks each to at most 1 MiB.
MAX_COMPRESSED_CHUNKS = 100
COMPRESSED_CHUNKS = (b"iCCP", b"zTXt", b"iTXt")

#: Bytes for each pixel at the peak of decoding: the result, Pillow's own picture, and Pillow's picture
#: together with libwebp's (two canvases, and a frame as bytes).
RESULT_BYTES, PILLOW_BYTES, WEBP_BYTES = 3, 4, 16

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: A JPEG can be decoded at 1/8, 1/4 or 1/2 of its size, which takes less time. libjpeg-turbo also has 3/8 and
#: 5/8 to 7/8, but they take longer than the next larger of these: bench/reports/photos.md.
SCALES = (8, 4, 2)
#: The markers of a JPEG (ITU-T T.81, B.1.1.3): start and end of the picture, start of a scan, and the
#: application segment that holds EXIF or XMP.
SOI, EOI, SOS, APP1 = 0xD8, 0xD9, 0xDA, 0xE1
#: Frames that turbojpeg decodes (baseline, extended, progressive), the others, and those of one pass.
FRAMES = (0xC0, 0xC1, 0xC2)
OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
SEQUENTIAL = (0xC0, 0xC1, 0xC9)
#: The segments that state what a picture is.
STATED = frozenset((*FRAMES, *OTHER_FRAMES, APP1, SOS))
#: Application segments and comments; without APP0 and APP14, which say how colours are coded.
METADATA = (*range(0xE1, 0xEE), 0xEF, 0xFE)
#: A marker that ends the data of a scan: no stuffed byte, no fill byte and no restart marker.
MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")

#: Files that callers send in place of a picture that can be decoded, by their beginnings.
OTHER_KINDS = (
    (re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL), "HEIC, which has to be converted first"),
    (re.compile(rb".{4}ftypavi[fs]", re.DOTALL), "AVIF, which has to be converted first"),
    (re.compile(rb"GIF8"), "GIF, which has to be converted first"),
    (re.compile(rb"II\*\0|MM\0\*"), "TIFF, which has to be converted first"),
    (re.compile(rb"BM.{12}[\x0c-\x7c]\0\0\0", re.DOTALL), "BMP, which has to be converted first"),
    (re.compile(rb"%PDF-"), "PDF, which has to be converted first"),
    (
        re.compile(rb"/9j/|iVBORw0KGgo|UklGR|data:image/"),
        "base64; encode once in JSON, and not at all in a raw body",
    ),
    (re.compile(rb"\s*[<{]"), "a text"),
)

#: A chunk's name, or a segment's marker; where its content begins; and the content's bytes.
Chunk = tuple[bytes, int, int]
Segment = tuple[int, int, int]
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
#: The EXIF tag, and the struct formats of the EXIF types that its value may have.
ORIENTATION_TAG = 0x0112
NUMBER_FORMATS = {1: "B", 3: "H", 4: "I"}


@dataclass(slots=True)
class PictureHeader:
    """The facts that a picture's file states before its pixels."""

    #: ``JPEG``, ``PNG`` or ``WEBP``.
    format: str
    #: In pixels, as stored; see :attr:`upright_size`.
    width: int
    #: In pixels, as stored.
    height: int
    #: Bytes of memory at the peak of decoding for each pixel of the result.
    bytes_per_pixel: int
    #: Bytes of memory for each stored pixel, whatever the scale: the coefficients of a JPEG of several scans.
    bytes_per_stored_pixel: int = 0
    #: EXIF's, 1 to 8; 1 is upright.
    orientation: int = 1
    #: True for a JPEG that turbojpeg can decode: 8 bits, and one or three components.
    quick: bool = False
    #: Bytes before the first scan of a JPEG.
    scan_offset: int = 0

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height with the orientation applied."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)

    def scale_for(self, width: int, height: int) -> int:
        """Choose the scale at which to decode a JPEG.

        Args:
            width: Pixels of the upright result, at least.
            height: Pixels of the upright result, at least.

        Returns:
            The largest divisor of both sides that leaves enough pixels: 8, 4, 2 or 1. Always 1 for a PNG or
            WebP.
        """
        if self.format != "JPEG":
            return 1
        if self.orientation >= 5:
            width, height = height, width
        for scale in SCALES:
            if self.width >= scale * width and self.height >= scale * height:
                return scale
        return 1

    def scaled_size(self, scale: int) -> tuple[int, int]:
        """Return the stored width and height divided by ``scale``, rounded up."""
        return -(-self.width // scale), -(-self.height // scale)

    def decode_bytes(self, scale: int = 1) -> int:
        """Return the bytes of memory that decoding at this scale takes at its peak."""
        # The sides of scaled_size, without a call.
        pixels = -(-self.width // scale) * -(-self.height // scale)
        return pixels * self.bytes_per_pixel + self.width * self.height * self.bytes_per_stored_pixel


def read_header(content: bytes) -> PictureHeader:
    """Read a picture's header. No pixel is decoded.

    Args:
        content: The file's bytes.

    Raises:
        sm.errors.BadInput: The bytes are not JPEG, PNG or WebP, or the picture has no pixels, or more pixels,
            scans, segments or chunks than are accepted.
    """
    if content.startswith(PNG_SIGNATURE):
        header = _png(content)
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        header = _webp(content)
    elif content.startswith(b"\xff\xd8\xff"):
        header = _jpeg(content)
    else:
        header = None
    if header is None:
        raise not_a_picture(content)
    return header


def not_a_picture(content: bytes) -> BadInput:
    """Return the error for bytes that no decoder opens; it names their format if their beginning shows it."""
    if len(content) >= 30 and content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        size = int.from_bytes(content[4:8], "little") + 8
        if size > len(content):
            return BadInput(f"the picture is truncated: it has {len(content):,} of {size:,} bytes")
    kind = next((kind for pattern, kind in OTHER_KINDS if pattern.match(content)), None)
    return BadInput(f"the bytes are not a JPEG, PNG or WebP picture{f': they are {kind}' if kind else ''}")


def check_pixels(width: int, height: int) -> None:
    """Raise :class:`BadInput` if a picture has no pixels, or more than :data:`MAX_PIXELS`."""
    if not width * height:
        raise BadInput(f"the picture's header says {width}x{height} pixels: there is no picture")
    if width * height > MAX_PIXELS:
        share = math.sqrt(MAX_PIXELS / (width * height))
        smaller = max(1, int(width * share)), max(1, int(height * share))
        raise BadInput(
            f"the picture has {width}x{height} pixels; at most {MAX_PIXELS:,} are accepted: send it smaller, "
            f"such as {smaller[0]}x{smaller[1]}",
            max_pixels=MAX_PIXELS,
            smaller=smaller,
        )


def _jpeg(content: bytes) -> PictureHeader | None:
    frame, scans, sequential, scan_offset = None, 0, False, 0
    exif = xmp = samples = b""
    segments, rest = _read_segments(content)
    while segments:
        kind, at, size = segments.popleft()
        if kind not in STATED:
            continue
        if kind != SOS and kind != APP1:
            # Every decoder fails at a second frame.
            frame = frame or (kind, *struct.unpack_from(">BHHB", content.ljust(at + 6, b"\0"), at))
            sequential = kind in SEQUENTIAL
            samples = content[at + 7 : at + 6 + 3 * frame[4] : 3]
            check_pixels(frame[3], frame[2])
        elif kind == APP1 and frame is None:
            exif = exif or content[at : at + size].partition(EXIF)[2]
            if content.startswith(XMP, at):
                xmp = xmp or content[at : at + size]
        elif kind == SOS:
            scans += 1
            scan_offset = scan_offset or at
            if scans > MAX_SCANS:
                raise BadInput(
                    f"the picture has more than {MAX_SCANS} scans, the most that are accepted: save it as a "
                    "JPEG that is not progressive",
                    max_scans=MAX_SCANS,
                )
            if frame and sequential and content[at : at + 1] == bytes([frame[4]]):
                # The scan has all components of a picture of one pass, so no decoder reads another scan.
                samples = b""
                break
            if not segments:
                segments, rest = _read_segments(content, rest)
    if frame is None:
        return None
    kind, bits, height, width, components = frame
    if scans * width * height > MAX_SCANNED_PIXELS:
        raise BadInput(
            f"the picture has {scans} scans of {width}x{height} pixels; "
            f"at most {MAX_SCANNED_PIXELS:,} pixels are accepted in all scans: save it as a JPEG that is not "
            "progressive"
        )
    orientation = _orientation(exif, xmp) if exif or xmp else 1
    quick = kind in FRAMES and bits == 8 and components in (1, 3)
    # Pixels from turbojpeg that are not upright are copied into a second array.
    extra_bytes = (RESULT_BYTES if orientation > 1 else 0) if quick else PILLOW_BYTES
    stored = _coefficient_bytes(samples) if samples else 0
    return PictureHeader(
        "JPEG", width, height, RESULT_BYTES + extra_bytes, stored, orientation, quick, scan_offset
    )


def _read_segments(content: bytes, begin: tuple[int, int] = (2, 0)) -> tuple[deque[Segment], tuple[int, int]]:
    """Read the segments up to the start of a scan: each one's marker, its content's offset, and its bytes.

    libjpeg goes through a file in the same way, so no scan that it would decode is missed. The data of a scan
    is searched only if the caller asks for what follows it.

    Args:
        content: The file's bytes.
        begin: Where to begin, and how many segments there were before: the second part of the last result.
    """
    segments: deque[Segment] = deque()
    at, number = begin
    search, end = MARKER.search, len(content) - 2
    while match := search(content, at):
        number += 1
        at = match.end()
        kind = content[at - 1]
        if number > MAX_SEGMENTS:
            raise BadInput(f"the picture has more than {MAX_SEGMENTS:,} segments")
        if kind == EOI or at > end:
            break
        if kind < FRAMES[0] or kind == SOI:
            continue  # has no length
        size = max(2, content[at] << 8 | content[at + 1])
        segments.append((kind, at + 2, size - 2))
        at += size
        if kind == SOS:
            break
    return segments, (at, number)


def without_metadata(content: bytes) -> bytes:
    """Return a JPEG without the metadata before its frame.

    Pillow would read all of the EXIF to learn the dots per inch, and keep a copy of every other segment.
    """
    # Slices of a view copy nothing: the bytes after the frame may be megabytes.
    view = memoryview(content)
    pieces, dropped = [view[:2]], False
    segments, rest = _read_segments(content)
    while segments:
        kind, at, size = segments.popleft()
        if kind in FRAMES or kind in OTHER_FRAMES:
            return b"".join([*pieces, view[at - 4 :]]) if dropped else content
        if kind in METADATA:
            dropped = True
        else:
            pieces.append(view[at - 4 : at + size])
        if not segments and kind == SOS:
            segments, rest = _read_segments(content, rest)
    return content


def _coefficient_bytes(samples: bytes) -> int:
    """Return the bytes of coefficients for each pixel; a decoder keeps them all if there are several scans.

    Args:
        samples: A byte of sampling factors for each component, as in the frame's header.
    """
    total, largest = 0, 1
    for sampling in samples:
        factor = (sampling >> 4 or 1) * (sampling & 15 or 1)
        total += factor
        largest = max(largest, factor)
    return 2 * -(-total // largest)


def _png(content: bytes) -> PictureHeader | None:
    if content[12:16] != b"IHDR" or len(content) < 24:
        return None
    width, height = struct.unpack_from(">II", content, 16)
    chunks = _chunks(content, len(PNG_SIGNATURE), ">I4s", 4)
    return _of_chunks("PNG", content, width, height, PILLOW_BYTES, chunks)


def _webp(content: bytes) -> PictureHeader | None:
    kind = content[12:16]
    if kind == b"VP8X" and len(content) >= 30:
        width = int.from_bytes(content[24:27], "little") + 1
        height = int.from_bytes(content[27:30], "little") + 1
    elif kind == b"VP8L" and len(content) >= 25:
        bits = int.from_bytes(content[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and len(content) >= 30:
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", content, 26))
    else:
        return None
    return _of_chunks("WEBP", content, width, height, WEBP_BYTES, _chunks(content, 12, "<4sI", 0))


def _of_chunks(
    kind: str, content: bytes, width: int, height: int, decoder_bytes: int, chunks: Iterable[Chunk]
) -> PictureHeader:
    """Return the header of a PNG or WebP of this size, whose metadata are in its chunks."""
    check_pixels(width, height)
    exif = xmp = b""
    compressed = 0
    for name, at, size in chunks:
        if name in (b"eXIf", b"EXIF"):
            exif = exif or content[at : at + size]
        elif name == b"XMP " or (name == b"iTXt" and content.startswith(b"XML:com.adobe.xmp\0\0", at)):
            xmp = xmp or content[at : at + size]
        if name in COMPRESSED_CHUNKS:
            compressed += 1
            if compressed > MAX_COMPRESSED_CHUNKS:
                raise BadInput(f"the picture has more than {MAX_COMPRESSED_CHUNKS} chunks of compressed text")
    orientation = _orientation(exif.removeprefix(EXIF), xmp)
    return PictureHeader(kind, width, height, RESULT_BYTES + decoder_bytes, orientation=orientation)


def _chunks(content: bytes, at: int, layout: str, checksum: int) -> Iterator[Chunk]:
    """Yield the name of each chunk of a PNG or WebP, the offset of its content, and the content's bytes.

    Args:
        content: The file's bytes.
        at: Where the first chunk begins.
        layout: The struct format of a chunk's name and size.
        checksum: Bytes of checksum after each chunk. Without a checksum, chunks of odd sizes are padded.
    """
    number = 0
    while at + 8 <= len(content):
        first, second = struct.unpack_from(layout, content, at)
        name, size = (first, second) if isinstance(first, bytes) else (second, first)
        number += 1
        if number > MAX_CHUNKS:
            raise BadInput(f"the picture has more than {MAX_CHUNKS:,} chunks")
        yield name, at + 8, size
        at += 8 + size + (checksum or size % 2)


def _orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation that EXIF states, else XMP's; 1 if there is none or the EXIF is damaged.

    Pillow is not used for this: it reads all tags, and a thousand of them may point to the same megabytes.
    """
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    try:
        if order:
            magic, at = struct.unpack_from(order + "HI", exif, 2)
            (entries,) = struct.unpack_from(order + "H", exif, at)
            for entry in range(at + 2, at + 2 + 12 * entries, 12):
                tag, kind, count = struct.unpack_from(order + "HHI", exif, entry)
                if tag == ORIENTATION_TAG and (magic, count) == (42, 1):
                    (value,) = struct.unpack_from(order + NUMBER_FORMATS[kind], exif, entry + 8)
                    return int(value) if 1 <= value <= 8 else 1
    except (struct.error, KeyError):
        return 1
    match = XMP_ORIENTATION.search(xmp)
    return int(match[1]) if match else 1
