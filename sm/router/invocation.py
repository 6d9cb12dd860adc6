"""The message of a request, and the five types that :mod:`sm.router.classify` turns it into."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from sm.client import decoded_base64
from sm.client.base import Client
from sm.client.decode_budget import BYTES_PER_MARK, MAX_UNCOUNTED_MARKS
from sm.client.sessions import Session
from sm.errors import TooLarge
from sm.http.messages import JSON

#: The beginning of a JSON object.
OBJECT = re.compile(rb"\s*\{")
HEADER_PREFIX = "x-amzn-sagemaker-"
SESSION_HEADER = f"{HEADER_PREFIX}session-id"
TARGET_MODEL = f"{HEADER_PREFIX}target-model"
CUSTOM_ATTRIBUTES = f"{HEADER_PREFIX}custom-attributes"


class RawRecord(NamedTuple):
    """A record that is the whole body of a request: a picture, a text or a ``.npy`` array."""

    body: bytes
    content_type: str


@dataclass(slots=True)
class DispatchRequest:
    """A request for a client, with its records and options."""

    model: str
    records: Sequence[Any]
    #: True if the caller sent a list of records; the answer is a list too.
    many: bool = False
    version: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Pairs ``k=v`` of the custom attributes; a client's parameters may be among them.
    attributes: Mapping[str, str] = field(default_factory=dict)
    accept: str = JSON
    #: True if the caller sent an Accept header.
    accept_named: bool = True
    #: The ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    session: Session | None = None
    #: Headers of the answer that the client sets while it works.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: The address in S3 to write the result to; empty to send it to the caller.
    result_s3_uri: str = ""
    #: The client of ``model``; None if the model has none.
    client: Client | None = None
    #: True if the answer is sent in parts.
    streamed: bool = False


class Address(NamedTuple):
    """Model and version; empty if the request names none."""

    model: str
    version: str
    #: Pairs of the custom attributes, which may be parameters.
    attributes: Mapping[str, str]


#: Of a request that names none.
NO_ADDRESS = Address("", "", MappingProxyType({}))


class RecordLimit:
    """Counts the records of one request, over all its lines, up to ``max_records``."""

    def __init__(self, max_records: int) -> None:
        self.max_records = max_records
        self._count = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Count records. Raises :class:`TooLarge`, without counting, if there would be too many."""
        with self._lock:
            if self._count + number > self.max_records:
                raise TooLarge(
                    f"the request has {self._count + number:,} records or more; "
                    f"at most {self.max_records:,} are accepted",
                    max_records=self.max_records,
                )
            self._count += number


class Message(NamedTuple):
    """A request as received. Header names are in lower case."""

    body: bytes
    headers: Mapping[str, str]
    query: Mapping[str, str]
    request_id: str
    #: The model in the path, which overrides all others.
    model: str = ""
    #: Path and query of a request in Triton's own API; empty for all others.
    target: str = ""
    #: True if the caller used the runtime's streaming call: a client that streams then does so.
    in_parts: bool = False

    @property
    def content_type(self) -> str:
        return media_type(self.headers.get("content-type", JSON))


class TritonRequest(NamedTuple):
    """A body of Triton's v2 protocol, JSON or binary, or any request to a model's own path below ``/v2``."""

    message: Message
    #: The model or client that it names, or the default; empty if there is neither.
    model: str
    version: str = ""
    #: The last part of Triton's path.
    verb: str = "infer"
    #: True if the body is in the binary form, even a malformed one.
    is_binary: bool = False

    @property
    def streamed(self) -> bool:
        """True if the answer is a stream of events."""
        return self.verb == "generate_stream"


class GenerateRequest(NamedTuple):
    """A body of Triton's generate extension. ``streamed``: the answer is a stream of events."""

    message: Message
    model: str
    version: str = ""
    streamed: bool = False
    is_binary: bool = False

    @property
    def verb(self) -> str:
        """The last part of Triton's path."""
        return "generate_stream" if self.streamed else "generate"


class LinesRequest(NamedTuple):
    """JSON lines: each line is a request, in one session and under one limit."""

    message: Message
    session: Session | None = None
    #: None for no limit.
    limit: RecordLimit | None = None


class SessionCommand(NamedTuple):
    """Open a session, or close the one with this id."""

    #: The id to close; empty to open a new session.
    close: str = ""


def read_address(message: Message) -> Address:
    """Read model and version from headers or query; a dispatch body may override them."""
    headers, query = message.headers, message.query
    target, text = headers.get(TARGET_MODEL, ""), headers.get(CUSTOM_ATTRIBUTES)
    attributes = custom_attributes(text) if text else {}
    return Address(
        message.model or attributes.get("modelname") or target or query.get("modelname", ""),
        attributes.get("version") or query.get("version", ""),
        attributes,
    )


def estimate_parsed_bytes(message: Message) -> int:
    """Estimate the memory of a large body's parsed JSON; 0 for other bodies.

    25 MiB of empty lists become 760 MiB of Python objects. A comma or a bracket stands for each of them. It
    is not part of the classification, because it decides whether the body may be parsed now.
    """
    body = message.body
    if len(body) < decoded_base64.MIN_BYTES or not (message.content_type == JSON or OBJECT.match(body)):
        return 0
    return BYTES_PER_MARK * sum(_count_marks(body, mark) for mark in (b",", b"[", b"{"))


def _count_marks(body: bytes, mark: bytes) -> int:
    """Count a byte in a body; 0 if it occurs less than :data:`MAX_UNCOUNTED_MARKS` times.

    ``find`` learns in a thirtieth of the time of ``count`` that a picture's base64 has none.
    """
    at = -1
    for _ in range(MAX_UNCOUNTED_MARKS):
        at = body.find(mark, at + 1)
        if at < 0:
            return 0
    return body.count(mark)


def custom_attributes(text: str) -> dict[str, str]:
    """Parse ``k=v;k=v``. Parts without ``=`` are skipped: the header may carry other data."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


@lru_cache(maxsize=256)  # Callers send the same few headers.
def media_type(header: str) -> str:
    """Return a ``Content-Type`` without its parameters; JSON if it is empty."""
    return header.split(";")[0].strip().lower() or JSON


@lru_cache(maxsize=256)
def choose_accept(header: str, default: str) -> str:
    """Return the content type of an Accept header that has the highest quality; ``default`` for ``*/*``."""
    best, best_quality = default, 0.0
    for part in header.split(","):
        content_type, *options = (piece.strip().lower() for piece in part.split(";"))
        quality_text = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            quality = float(quality_text)
        except ValueError:
            continue
        if content_type and quality > best_quality:
            best, best_quality = (default if content_type == "*/*" else content_type), quality
    return best
