"""A form of a request: :class:`Form`, its row in the table, and :class:`Reading`, what it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import orjson

from sm.client.base import Client
from sm.client.sessions import Session
from sm.errors import TriremeError
from sm.http.media_types import RouteTypes, choose_kind, is_json, kind_of, media_type, parse
from sm.http.messages import JSON, OCTET_STREAM, Answer, check_not_empty, load_json, not_json, write_error
from sm.invocation import Invocation
from sm.models.table import Models, ResolvedModel
from sm.router.request_types import (
    Address,
    Call,
    ClassifiedRequest,
    DispatchRequest,
    Message,
    RawRecord,
)


class Form(ABC):
    """One form of a request: a row of :mod:`sm.router.forms.table`. One object for all requests."""

    #: Paths of its own; a POST to one is of this form, or of another of the path. Without any, it is a form
    #: of a body of ``/invocations`` and of all that invokes in the same way.
    paths: tuple[str, ...] = ()
    #: The media types of bodies and answers of its paths.
    types = RouteTypes((JSON,), (JSON,))
    #: The JSON that a GET of other paths returns: lists of models, which clients of its API ask for.
    lists: ClassVar[Mapping[str, Callable[[Models], object]]] = {}

    @abstractmethod
    def has(self, reading: Reading) -> bool:
        """True if a message is of this form. It is asked for many messages: look at the cheapest first."""

    @abstractmethod
    def read(self, reading: Reading) -> Call | ClassifiedRequest:
        """Read a message that is of this form. Raises :class:`~sm.errors.TriremeError`."""

    def write_error(self, error: TriremeError, request_id: str, echo: Any) -> Answer:  # noqa: ARG002
        """Return the answer to a request of its paths that failed. ``echo``: see :attr:`Reading.echo`."""
        return write_error(error, request_id)

    def schema(self) -> Mapping[str, Any]:
        """Return its part of the OpenAPI document: ``paths``, and ``components`` with their ``schemas``."""
        return {}


@dataclass(eq=False)
class Reading:
    """A message that is being read, and what is known of it. Its body is parsed once, if a form asks."""

    message: Message
    #: That are served.
    models: Models
    #: The model that its headers, query or path name.
    address: Address
    #: The same, else the default one; empty if there is neither.
    model: str
    #: Uses the models.
    invocation: Invocation | None
    #: What the box takes JSON as: ``infer``, ``generate`` or ``generate_stream``.
    inference_type: str
    #: The type of the answer that its caller likes best.
    accept: str
    session: Session | None
    #: The records that it may have; None for no limit.
    max_records: int | None
    #: True for a line of JSON lines, which may be a payload alone.
    is_line: bool
    #: Returns the request for a client that members of a dispatch request mean.
    dispatch: Callable[[Mapping[str, Any]], DispatchRequest]
    #: A part of the request that its errors repeat, such as an id of its caller's: the form sets it when it
    #: reads. None: nothing, also where the body was never read.
    echo: Any = None
    _parsed: bool = False
    _value: Any = None
    _error: orjson.JSONDecodeError | None = None

    def __post_init__(self) -> None:
        self.body = self.message.body
        self.body_type = self.message.headers.get("content-type", JSON)
        #: The body's type by the name that the box knows.
        self.kind = kind_of(self.body_type)

    @cached_property
    def served(self) -> ResolvedModel | None:
        """The model served as :attr:`model`. A form of its own path may find another one in the body."""
        return self.models.use(self.model, self.invocation) if self.model else None

    @cached_property
    def client(self) -> Client | None:
        """The client of the model; None if it has none."""
        return None if self.served is None else self.served.client

    @property
    def content_type(self) -> str:
        """The body's type as its caller calls it."""
        return media_type(self.body_type)

    @property
    def is_json(self) -> bool:
        """True if the caller calls the body JSON, or a kind of it."""
        return is_json(self.kind)

    @property
    def is_plain(self) -> bool:
        """True if the model is Triton's alone: it has no client."""
        return self.served is not None and self.client is None

    @property
    def value(self) -> Any:
        """The body as JSON; None also if it is not JSON."""
        if not self._parsed:
            self._parsed = True
            try:
                self._value = load_json(self.body)
            except orjson.JSONDecodeError as error:
                self._error = error
        return self._value

    def json(self) -> Any:
        """Return the body as JSON. Raises :class:`~sm.errors.BadInput` if it is empty or not JSON."""
        check_not_empty(self.body)
        value = self.value
        if self._error is not None:
            raise not_json(self._error) from None
        return value

    def is_bare(self, value: Any) -> bool:
        """True if a line's JSON value is a payload without a dispatch request around it."""
        return b'"payload"' not in self.body or not has_payload(value)

    @cached_property
    def record(self) -> RawRecord | None:
        """The whole body as a record, if it is of a type that the client takes; JSON is read as a request."""
        if self.client is None:
            return None
        body_type = self.message.headers.get("content-type", "")
        if body_type and self.kind == JSON:
            return None
        content_type = media_type(body_type) if body_type else OCTET_STREAM
        accepted = self.client.payload.content_types
        taken = content_type if content_type in accepted else choose_kind(content_type, self.body, accepted)
        return RawRecord(self.body, taken, parse(body_type or JSON).parameters) if taken else None

    def raw(self) -> RawRecord:
        """Return the whole body as a record."""
        return RawRecord(self.body, self.content_type)

    def use(self, model: str) -> Client | None:
        """Return the client of that name, and use it for this request; None if there is none."""
        served = self.models.use(model, self.invocation)
        return None if served is None else served.client


#: The members of a dispatch request.
MEMBERS = frozenset({"modelname", "version", "payload", "parameters"})


def has_payload(value: Any) -> bool:
    """True if a JSON value is a dispatch request: an object with a payload and no unknown member."""
    return isinstance(value, dict) and "payload" in value and MEMBERS.issuperset(value)
