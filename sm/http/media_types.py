"""Media types: their names, the charset of a text, what bytes are, and the negotiation of ``Accept``."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from sm.errors import BadInput, NotAcceptable, UnsupportedType
from sm.http.messages import BINARY, BOM, CSV, EVENTS, JSON, JSON_LINES, NPY, NPZ, OCTET_STREAM, PNG, TEXT

#: Each type that the box reads or writes, and the other names that callers use for it: registered ones
#: (https://www.iana.org/assignments/media-types), older ones, and those of SageMaker's own containers.
NAMES: Mapping[str, str] = {
    JSON: "text/json application/x-json text/x-json",
    JSON_LINES: "application/x-jsonlines application/json-lines application/jsonl application/x-jsonl "
    "application/ndjson application/x-ndjson text/jsonl text/jsonlines text/x-ndjson",
    CSV: "text/x-csv application/csv application/x-csv text/comma-separated-values "
    "text/x-comma-separated-values",
    TEXT: "",
    "text/libsvm": "text/x-libsvm application/x-libsvm",
    NPY: "application/npy application/numpy application/x-numpy",
    NPZ: "application/npz",
    "image/jpeg": "image/jpg image/pjpeg image/jfif image/x-jpeg image/x-jpg",
    PNG: "image/x-png image/apng image/vnd.mozilla.apng",
    "image/webp": "image/x-webp",
    "audio/wav": "audio/wave audio/x-wav audio/x-wave audio/vnd.wave audio/x-pn-wav",
    "audio/flac": "audio/x-flac application/x-flac",
    "audio/mpeg": "audio/mp3 audio/x-mp3 audio/mpeg3 audio/x-mpeg-3 audio/x-mpeg audio/mpg",
    "audio/ogg": "audio/x-ogg application/ogg audio/vorbis audio/opus",
}
CANONICAL: Mapping[str, str] = {
    name: kind for kind, names in NAMES.items() for name in (kind, *names.split())
}
#: Names that say nothing of the format, and the beginning of the types that they may stand for.
GENERIC: Mapping[str, str] = {
    "application/x-image": "image/",
    "image/x-image": "image/",
    "image/*": "image/",
    "audio/x-audio": "audio/",
    "audio/*": "audio/",
    OCTET_STREAM: "",
    "binary/octet-stream": "",
}
#: How the bytes of a type begin.
SIGNATURES = (
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    (PNG, re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
    ("audio/wav", re.compile(rb"RIFF....WAVE", re.DOTALL)),
    ("audio/flac", re.compile(rb"fLaC")),
    ("audio/ogg", re.compile(rb"OggS")),
    ("audio/mpeg", re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")),
    (NPY, re.compile(rb"\x93NUMPY")),
)
#: Python's codecs that are not charsets of the web: they run code of their own, or take quadratic time.
NOT_CHARSETS = frozenset(
    {"charmap", "idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape", "utf_7"}
)
#: Charsets whose bytes are UTF-8 as they are.
UTF_8 = frozenset({"utf-8", "utf-8-sig"})


class RouteTypes(NamedTuple):
    """Media types that a route reads and writes. The model decides on ``a client's``, else the caller."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]


ANY_RAW = "a client's raw types"
INVOKE = RouteTypes(
    (JSON, JSON_LINES, BINARY, ANY_RAW), (JSON, CSV, NPY, PNG, JSON_LINES, EVENTS, BINARY, "a client's own")
)
#: Media types by the path and method of a route, but for those that extensions add.
#: ``docs/clients/http-api.md`` has this table, and the routes without a model are refused by it.
ROUTES: Mapping[str, RouteTypes] = {
    "POST /invocations": INVOKE,
    "POST /models/{name}/invoke": INVOKE,
    "POST /endpoints/{name}/invocations": INVOKE,
    "POST /endpoints/{name}/invocations-response-stream": INVOKE._replace(
        gives=("application/vnd.amazon.eventstream",)
    ),
    "POST /v2/models/{name}/infer": RouteTypes((JSON, OCTET_STREAM), (JSON, OCTET_STREAM)),
    "POST /v2/models/{name}/generate": RouteTypes((JSON,), (JSON,)),
    "POST /v2/models/{name}/generate_stream": RouteTypes((JSON,), (EVENTS,)),
    "GET /v2/{path}": RouteTypes((), (JSON,)),
    "GET /models": RouteTypes((), (JSON,)),
    "POST /models": RouteTypes((JSON,), (JSON,)),
    "GET /models/{name}": RouteTypes((), (JSON,)),
    "DELETE /models/{name}": RouteTypes((), (JSON,)),
    "POST /models/{name}/versions": RouteTypes((JSON,), (JSON,)),
    "PATCH /models/{name}/versions": RouteTypes((JSON,), (JSON,)),
    "GET /execution-parameters": RouteTypes((), (JSON,)),
    "GET /openapi.json": RouteTypes((), (JSON,)),
    "GET /metrics": RouteTypes((), (TEXT,)),
}

MEDIA_RANGE = re.compile(r"[^/\s]+/[^/\s]+")
PARTS = {mark: re.compile(rf'(?:[^{mark}"]|"(?:[^"\\]|\\.)*"?)+') for mark in ",;"}


class MediaType(NamedTuple):
    """A ``Content-Type``: its name in lower case, and its parameters."""

    name: str
    parameters: Mapping[str, str]

    @property
    def kind(self) -> str:
        """The name by which the box knows the type."""
        return CANONICAL.get(self.name, self.name)


@lru_cache(maxsize=256)  # Callers send the same few headers.
def parse(header: str) -> MediaType:
    """Parse a ``Content-Type``; JSON if it is empty."""
    name, _, rest = header.partition(";")
    parameters: dict[str, str] = {}
    for part in PARTS[";"].findall(rest):
        key, _, value = part.partition("=")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        parameters.setdefault(key.strip().lower(), value)
    return MediaType(name.strip().lower() or JSON, MappingProxyType(parameters))


@lru_cache(maxsize=256)
def media_type(header: str) -> str:
    """Return the name in a ``Content-Type``, without parameters; JSON if it is empty."""
    return parse(header).name


@lru_cache(maxsize=256)
def kind_of(header: str) -> str:
    """Return the name by which the box knows a ``Content-Type``; JSON if it is empty."""
    return parse(header).kind


def is_json(kind: str) -> bool:
    """True if a body of this type is JSON, also by its name's suffix (RFC 6839)."""
    return kind == JSON or (kind.endswith("+json") and kind != BINARY)


def is_text(kind: str) -> bool:
    """True if a body of this type is a text: it has a charset, and may begin with a byte order mark."""
    return is_json(kind) or kind == JSON_LINES or kind.startswith("text/")


def sniff(body: bytes) -> str:
    """Return the type of a picture, a recording or an array by its first bytes; empty for anything else."""
    return next((kind for kind, signature in SIGNATURES if signature.match(body)), "")


def choose_kind(content_type: str, body: bytes, accepted: Sequence[str]) -> str:
    """Return the type of ``accepted`` as which a body can be read; empty if there is none.

    Args:
        content_type: The name that the caller sent.
        body: Tells a picture's type, whatever its caller calls it, and that of a body without a proper name.
        accepted: Types that a client takes, by any of their names.
    """
    kinds = {CANONICAL.get(name, name): name for name in accepted}
    if found := kinds.get(CANONICAL.get(content_type, content_type)):
        return found
    family = GENERIC.get(content_type, "image/" if content_type.startswith("image/") else None)
    if family is None:
        return ""
    sniffed = sniff(body)
    if sniffed.startswith(family) and sniffed in kinds:
        return kinds[sniffed]
    # A reader of pictures says best what is wrong with one.
    is_generic = family and content_type in GENERIC
    return next((name for kind, name in kinds.items() if is_generic and kind.startswith(family)), "")


def to_utf8(body: bytes, header: str) -> bytes:
    """Return a text's body in UTF-8, without a byte order mark; any other body unchanged.

    Args:
        body: The body.
        header: Its ``Content-Type``, whose ``charset`` is obeyed.

    Raises:
        UnsupportedType: The charset is unknown.
        BadInput: The body is not in its charset.
    """
    content_type = parse(header)
    if not is_text(content_type.kind):
        return body
    charset = content_type.parameters.get("charset", "")
    codec = find_codec(charset) if charset else "utf-8"
    if codec not in UTF_8:
        try:
            body = body.decode(codec).encode()
        except UnicodeError as error:  # a lone surrogate cannot be encoded
            raise BadInput(f"the body is not {charset[:40]!r}, its charset: {error}"[:300]) from None
    return body[len(BOM) :] if body.startswith(BOM) else body


@lru_cache(maxsize=256)
def without_charset(header: str) -> str:
    """Return a ``Content-Type`` without its charset, as that of a body that :func:`to_utf8` has read."""
    name, _, rest = header.partition(";")
    parts = PARTS[";"].findall(rest)
    kept = (part.strip() for part in parts if part.partition("=")[0].strip().lower() != "charset")
    return "; ".join((name.strip(), *filter(None, kept)))


@lru_cache(maxsize=64)
def find_codec(charset: str) -> str:
    """Return Python's name of a charset. Raises :class:`UnsupportedType`, which names the charset."""
    try:
        codec = codecs.lookup(charset.strip())
        if codec.name.replace("-", "_") in NOT_CHARSETS or not codec._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError, UnicodeError):
        raise UnsupportedType(
            f"the charset {charset[:40]!r} is not known here; send the body in UTF-8", charset=charset[:40]
        ) from None
    return codec.name


class MediaRange(NamedTuple):
    """A range of ``Accept``: ``text/csv``, ``text/*`` or ``*/*``."""

    name: str
    quality: float

    def matches(self, kind: str) -> bool:
        """True if the range has the type."""
        if self.name.endswith("/*"):
            return self.name == "*/*" or kind.startswith(self.name[:-1])
        return CANONICAL.get(self.name, self.name) == kind


@lru_cache(maxsize=256)
def read_accept(header: str) -> tuple[MediaRange, ...]:
    """Parse an ``Accept`` header; empty if the caller takes anything (RFC 9110, section 12.5.1).

    The narrowest range is first, as it decides on a type: application/json;q=0 forbids what */* allows. Parts
    that are not media ranges are ignored, as are empty ones. Parameters other than ``q`` are too: none tells
    two answers of the box apart.
    """
    ranges = []
    for part in PARTS[","].findall(header):
        name, _, rest = part.lower().partition(";")
        name = "*/*" if name.strip() == "*" else name.strip()  # Java's HttpURLConnection sends it
        options = (option.strip() for option in PARTS[";"].findall(rest))
        text = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            quality = min(max(0.0, float(text)), 1.0)
        except ValueError:
            continue
        if MEDIA_RANGE.fullmatch(name):
            ranges.append(MediaRange(name, quality))
    return tuple(sorted(ranges, key=lambda each: each.name.count("*")))


def quality_of(header: str, kind: str) -> float:
    """Return how much the caller likes a type, 0 to 1; 0: it does not take it."""
    ranges, kind = read_accept(header), CANONICAL.get(kind, kind)
    return next((each.quality for each in ranges if each.matches(kind)), 0.0) if ranges else 1.0


@lru_cache(maxsize=1024)
def acceptable(header: str, offers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the offers that the caller takes, the best first; of equally good ones, the first offer."""
    qualities = {offer: quality_of(header, offer) for offer in offers}
    return tuple(sorted((offer for offer in offers if qualities[offer]), key=lambda offer: -qualities[offer]))


def choose(header: str, offers: tuple[str, ...]) -> str:
    """Return the offer that the caller likes best; empty if it takes none of them."""
    return next(iter(acceptable(header, offers)), "")


def negotiate(header: str, offers: tuple[str, ...]) -> str:
    """Return the offer that the caller likes best. Raises :class:`NotAcceptable` if it takes none of them."""
    chosen = choose(header, offers)
    if not chosen:
        raise NotAcceptable(
            f"the answer is sent as {', '.join(offers)}; the Accept header allows only {header[:100]!r}"
        )
    return chosen


@lru_cache(maxsize=256)
def most_wanted(header: str) -> str:
    """Return the type that the header names and likes best; empty if it names none."""
    named = [each for each in read_accept(header) if "*" not in each.name and each.quality]
    return max(named, key=lambda each: each.quality).name if named else ""
