"""Messages of both planes: answers, errors, JSON bodies, media types and request ids."""

from __future__ import annotations

import codecs
import gc
import http.client
import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic_core import from_json

from sm.errors import BadInput, TriremeError

JSON = "application/json"
JSON_LINES = "application/jsonlines"
NPY = "application/x-npy"
NPZ = "application/x-npz"
CSV = "text/csv"
TEXT = "text/plain"
PNG = "image/png"
EVENTS = "text/event-stream"
OCTET_STREAM = "application/octet-stream"
#: SageMaker's content type of Triton's binary form: JSON of so many bytes, then the tensors.
BINARY = "application/vnd.sagemaker-triton.binary+json"
#: A UTF-8 byte order mark, which editors of Windows and PowerShell write before a text.
BOM = codecs.BOM_UTF8


@dataclass(slots=True)
class Answer:
    """The answer to a caller: a body, or chunks of a body that is still being produced."""

    body: bytes | Iterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Called when the body is sent, or will not be.
    on_sent: Callable[[], object] | None = None
    #: The records of a list that have their result in it, and those that are wrong by their caller's fault.
    right: int = 1
    wrong: int = 0

    def read(self) -> bytes:
        """Return the whole body; for a stream, after it has ended."""
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


def write_error(error: TriremeError, request_id: str, body: Mapping[str, object] | None = None) -> Answer:
    """Encode an error in the form that all errors have, or as the ``body`` of another form."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    content = orjson.dumps(error.body(request_id) if body is None else body)
    return Answer(content, status=error.status, headers=headers)


#: Bytes of JSON that is parsed without the garbage collector.
LARGE_JSON_BYTES = 2**14
#: Bytes of a large body: memory is reserved for what is made of it, and its texts may be long.
LARGE_BODY_BYTES = 2**20
#: The share of a large body's bytes that may open lists and objects, each of which takes 80 bytes of memory:
#: as many as a tensor has with 15 dimensions of size one, and a digit for each value.
MAX_OPENING = 15 / 32
#: A larger share than this is read by a parser that takes half as long again, and 8 bytes less for each byte.
MANY_OPENING = 3 / 8
#: Texts of a large body that are looked for. If they are most of it, as a picture's base64 is, that parser
#: reads it too: it takes a seventh of the usual one's time.
MAX_LONG_TEXTS = 1000
#: Numbers in which the two parsers differ.
UNLIKE_NUMBER = re.compile(rb"[0-9](?:[eE]|[0-9]{17})")


def load_json(text: bytes) -> Any:
    """Parse a caller's JSON. Raises :class:`orjson.JSONDecodeError`, also for a large one of brackets alone.

    For each 700 new lists the garbage collector would look at many of those before: seven times the work, and
    the parser makes no garbage. It keeps the interpreter to itself, so nobody else misses the collector.
    """
    if len(text) < LARGE_JSON_BYTES:
        return orjson.loads(text)
    rest = text if len(text) < LARGE_BODY_BYTES else without_texts(text)
    share = count_opening(rest) / len(text)
    if share > MAX_OPENING and count_opening(outside_texts(text, b"[]{}")) > MAX_OPENING * len(text):
        raise orjson.JSONDecodeError("it has too many lists and objects for its size", "", 0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if (share > MANY_OPENING or rest is not text) and not UNLIKE_NUMBER.search(rest):
            with suppress(ValueError):  # the usual parser says what is wrong
                return from_json(text, allow_inf_nan=False)
        return orjson.loads(text)
    finally:
        if was_enabled:
            gc.enable()


def without_texts(text: bytes) -> bytes:
    """Return JSON without its texts if a few are most of it; all of it if not, or if one has an escape."""
    parts: list[bytes] = []
    at = 0
    if b"\\" not in text:
        for _ in range(MAX_LONG_TEXTS):
            begin = text.find(b'"', at)
            end = text.find(b'"', begin + 1)
            if begin < 0 or end < 0:
                rest = b"".join([*parts, text[at:]])
                return rest if len(rest) < len(text) / 2 else text
            parts.append(text[at:begin])
            at = end + 1
    return text


def count_opening(text: bytes) -> int:
    """Return how many brackets open a list or an object, those in texts too."""
    return text.count(b"[") + text.count(b"{")


def outside_texts(text: bytes, kept: bytes) -> bytes:
    """Return the characters of JSON that are in ``kept`` and in no text; behind its first fault, in any."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.translate(None, bytes({*range(256)} - {*kept, ord('"')})).split(b'"')[::2])


def parse_json(body: bytes) -> Any:
    """Parse standard JSON: no NaN, at most the parser's 1,024 levels. A byte order mark is ignored."""
    body = body.removeprefix(BOM)
    check_not_empty(body)
    try:
        return load_json(body)
    except orjson.JSONDecodeError as error:
        raise not_json(error) from None


def not_json(error: orjson.JSONDecodeError) -> BadInput:
    """Return the caller's error for a body that the parser refuses."""
    reason = str(error)
    if "not valid UTF-8" in error.msg:
        # The parser looks for this first, so it says nothing of where.
        reason = "it is not UTF-8; a picture or other bytes need a Content-Type of their own"
    elif error.doc[error.pos : error.pos + 1] == "'":
        reason = f"{reason}; JSON has double quotes"
    return BadInput(f"the body is not JSON: {reason}")


#: The words for numbers that JSON does not have.
NO_NUMBERS = (b"-Infinity", b"Infinity", b"-Inf", b"Inf", b"-NaN", b"NaN")
#: A backslash and a quote within a text, and bytes that stand for them, which no JSON has.
ESCAPES = ((b"\\\\", b"\0"), (b'\\"', b"\1"))


def strict_json(body: bytes, only: bytes = b"") -> bytes:
    """Return JSON in which NaN and infinity are null (RFC 8259 has no words for them).

    Python's and Triton's writers use words that no other parser reads. ``only``: the one word to replace.
    """
    words = (only,) if only else NO_NUMBERS
    if not any(word in body for word in words) or b"\0" in body or b"\1" in body:
        return body
    for escape, byte in ESCAPES:
        body = body.replace(escape, byte)
    parts = body.split(b'"')
    outside = b'"'.join(parts[::2])
    for word in words:
        outside = outside.replace(word, b"null")
    parts[::2] = outside.split(b'"')
    body = b'"'.join(parts)
    for escape, byte in ESCAPES:
        body = body.replace(byte, escape)
    return body


def check_not_empty(body: bytes) -> None:
    """Raise :class:`BadInput` for a body of white space only."""
    if not body or body.isspace():
        raise BadInput("the body is empty")


#: The platform's grammar: 1 to 64 printable characters, without those that JSON would escape.
#: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpoint.html
INFERENCE_ID = r"[!#-\[\]-~][ !#-\[\]-~]{0,63}"
#: An id in ``X-Request-Id``, which proxies and callers outside AWS send.
REQUEST_ID = r"[!#-\[\]-~][ !#-\[\]-~]{0,127}"
_FIELD = r"[A-Za-z]{1,20}=[0-9A-Za-z.:|?_-]{1,64}"
#: Fields separated by semicolons, one of them Root. Load balancers put Self before it, and Parent, Sampled
#: and Lineage after it. https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html
TRACE_ID = (
    r"(?=.{1,256}$)"
    rf"(?:{_FIELD};){{0,6}}Root=1-[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{24}}(?:;{_FIELD}){{0,6}}"
)
#: Headers that may carry an id, in order: nginx's choice, else the headers from which nginx chooses.
_SOURCES = tuple(
    (header, re.compile(pattern))
    for header, pattern in (
        ("HTTP_X_TRIREME_REQUEST_ID", f"{REQUEST_ID}|{TRACE_ID}"),
        ("HTTP_X_AMZN_SAGEMAKER_INFERENCE_ID", INFERENCE_ID),
        ("HTTP_X_REQUEST_ID", REQUEST_ID),
        ("HTTP_X_AMZN_TRACE_ID", TRACE_ID),
    )
)


def given_id(environ: Mapping[str, object]) -> str | None:
    """Return the id in a request's headers; None if no header has a valid one."""
    for header, pattern in _SOURCES:
        value = environ.get(header)
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
    return None


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("box", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def caller_network(address: str) -> str:
    """Return an IPv4 address as it is, and the first 64 bits of an IPv6 one: a single customer has that many.

    Addresses of IPv4 callers on an IPv6 socket (``::ffff:192.0.2.1``) are IPv4's.
    """
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))
