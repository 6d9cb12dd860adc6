"""A request as received, the four types that it may be, and what a form has read of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sm.client import results
from sm.client.base import Client
from sm.client.decode_budget import BYTES_PER_MARK, Room
from sm.client.payloads import RequestContext
from sm.client.results import dumps
from sm.client.sessions import Session
from sm.errors import FieldPath, TooLarge, TriremeError
from sm.http.media_types import kind_of, media_type
from sm.http.messages import JSON

HEADER_PREFIX = "x-amzn-sagemaker-"
SESSION_HEADER = f"{HEADER_PREFIX}session-id"
TARGET_MODEL = f"{HEADER_PREFIX}target-model"
CUSTOM_ATTRIBUTES = f"{HEADER_PREFIX}custom-attributes"
#: The place of the records in a dispatch request, for errors.
PAYLOAD: FieldPath = ("payload",)


class RawRecord(NamedTuple):
    """A record that is the whole body of a request: a picture, a text or a ``.npy`` array."""

    body: bytes
    content_type: str
    #: The parameters of the content type, such as ``header`` of CSV.
    options: Mapping[str, str] = MappingProxyType({})


#: Bytes of memory for a number of an array, with those of its JSON.
BYTES_PER_NUMBER = 16


class Call:
    """A request in a form, as its form has read it. One object for each request.

    Args:
        records: What the client gets, one by one; a sequence may make each when it is asked for.
        parameters: The client's.
        model: The client's name, if the body has it; else the request's address names it.
        version: The same for the model's version.
        root: The place of the records in the body, for errors.
        many: True if each record has a number there.
    """

    #: The type of the answer.
    content_type = JSON

    def __init__(
        self,
        records: Sequence[Any],
        parameters: Mapping[str, Any] | None = None,
        model: str = "",
        version: str | int = "",
        root: FieldPath = PAYLOAD,
        many: bool = False,
    ) -> None:
        self.records, self.parameters = records, parameters or {}
        self.model, self.version, self.root, self.many = model, version, root, many

    def name(self, path: FieldPath) -> FieldPath:
        """Return the place of a wrong field as this form calls it.

        Args:
            path: It begins with :attr:`root`, or is ``("parameters", name)``.
        """
        return path

    def keep(self, result: Any) -> Any:
        """Return what is kept of a record's result until all have theirs: its JSON is often smaller."""
        return result

    def write(self, kept: Iterator[Any], request: DispatchRequest, room: Room) -> bytes:
        """Return the answer to all records: by default the JSON of what :meth:`convert` returns of them.

        Args:
            kept: What :meth:`keep` returned, in the order of the records.
            request: The request.
            room: What the answer takes of the box's memory. It has to grow with it.
        """
        found, size = [], 0
        for result in kept:
            found.append(result)
            size += estimate_bytes(result)
            room.grow(size)
        try:
            return dumps(self.convert(found, request.client))
        except (TypeError, ValueError) as error:
            raise unencodable(request.model, found) from error

    def convert(self, found: list[Any], client: Any) -> Any:  # noqa: ARG002
        """Return what is sent for the results of all records."""
        return found


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
    #: How it is answered if it is in another form; None for a dispatch request.
    call: Call | None = None
    #: The parameters as the client's payload has them; None before the first record is read.
    options: Any = None

    @property
    def count(self) -> int:
        return len(self.records)

    def place(self, number: int) -> FieldPath:
        """Return the place of a record in the request, for errors."""
        root = PAYLOAD if self.call is None else self.call.root
        return (*root, number) if self.many else root


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


class Address(NamedTuple):
    """Model and version; empty if the request names none."""

    model: str
    version: str
    #: Pairs of the custom attributes, which may be parameters.
    attributes: Mapping[str, str]


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
    #: The path, if it is one of a form's own; empty for all others.
    path: str = ""

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


def unencodable(model: str, result: object) -> TriremeError:
    """Return the error for a result of which there is no JSON."""
    return results.error(f"the result of {model!r} cannot be sent", "result", result, dumps)


def estimate_bytes(result: object) -> int:
    """Estimate the memory of a result and of its JSON; the items of a list are like its first."""
    if isinstance(result, np.ndarray):
        return BYTES_PER_NUMBER * result.size
    if isinstance(result, str | bytes):
        return BYTES_PER_MARK + 2 * len(result)
    if isinstance(result, dict):
        return BYTES_PER_MARK * (1 + len(result)) + sum(map(estimate_bytes, result.values()))
    if isinstance(result, list | tuple) and result:
        return BYTES_PER_MARK + len(result) * estimate_bytes(result[0])
    return BYTES_PER_MARK
