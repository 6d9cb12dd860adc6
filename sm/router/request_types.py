"""A request as received, and the four types that it may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from sm.client.base import Client
from sm.client.decode_budget import Room
from sm.client.hugging_face import Pipeline
from sm.client.payloads import RequestContext
from sm.client.sessions import Session
from sm.errors import TooLarge
from sm.http.media_types import kind_of, media_type
from sm.http.messages import JSON

HEADER_PREFIX = "x-amzn-sagemaker-"
SESSION_HEADER = f"{HEADER_PREFIX}session-id"
TARGET_MODEL = f"{HEADER_PREFIX}target-model"
CUSTOM_ATTRIBUTES = f"{HEADER_PREFIX}custom-attributes"


class RawRecord(NamedTuple):
    """A record that is the whole body of a request: a picture, a text or a ``.npy`` array."""

    body: bytes
    content_type: str
    #: The parameters of the content type, such as ``header`` of CSV.
    options: Mapping[str, str] = MappingProxyType({})


class PipelineCall(NamedTuple):
    """A request ``{"inputs", "parameters"}`` as its caller sent it."""

    inputs: Any
    parameters: Mapping[str, Any]
    pipeline: Pipeline
    #: The place of the records in the request, for errors.
    path: str = "inputs"


@dataclass(slots=True)
class DispatchRequest(RequestContext):
    """A request for a client, with its records and options."""

    model: str
    records: Sequence[Any]
    #: True if the caller sent a list of records; the answer is a list too.
    many: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Pairs ``k=v`` of the custom attributes; a client's parameters may be among them.
    attributes: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    #: The client of ``model``.
    client: Client = field(kw_only=True)
    #: True if the answer is sent in parts.
    streamed: bool = False
    #: The place of the records in the request, for errors.
    path: str = "payload"
    #: How a request in Hugging Face's form is answered; None for any other.
    pipeline: PipelineCall | None = None
    #: The same for a request that its route has read.
    form: Form | None = None
    #: The parameters as the client's payload has them; None before the first record is read.
    options: Any = None

    def place(self, number: int) -> str:
        """Return the place of a record in the request, for errors."""
        return f"{self.path}[{number}]" if self.many else self.path


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
                    f"at most {self.max_records:,} are accepted: send them in several requests",
                    max_records=self.max_records,
                )
            self._count += number


class Form(NamedTuple):
    """A body of another system's form, which its route has read."""

    #: Those of the dispatch request that it means.
    members: Mapping[str, Any]
    #: Returns what is kept of a record's result until all have theirs.
    encode: Callable[[Any], Any]
    #: Returns the answer to all records, which has so much room in memory.
    write: Callable[[Iterator[Any], Room], bytes]


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
    #: The body, if its route has read it.
    form: Form | None = None

    @property
    def content_type(self) -> str:
        """The type of the body as its caller calls it."""
        return media_type(self.headers.get("content-type", JSON))

    @property
    def kind(self) -> str:
        """The type of the body, by the name that the box knows."""
        return kind_of(self.headers.get("content-type", JSON))


class TritonRequest(NamedTuple):
    """A body for Triton: its v2 protocol, JSON or binary, its generate extension, or a path in ``/v2``."""

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


class LinesRequest(NamedTuple):
    """JSON lines: each line is a request, in one session and under one limit."""

    message: Message
    session: Session | None = None
    #: The limit of its records; None for no limit.
    limit: RecordLimit | None = None


class SessionCommand(NamedTuple):
    """Open a session, or close the one with this id."""

    #: The id to close; empty to open a new session.
    close: str = ""


#: A request for a model; a line of JSON lines may be one too.
ModelRequest = DispatchRequest | TritonRequest
ClassifiedRequest = ModelRequest | LinesRequest | SessionCommand
