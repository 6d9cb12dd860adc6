"""Read a request into an invocation: model, records, parameters, and what the caller accepts.

The forms of a request and where they are told apart: :func:`read`. A later form gets a function of
its own beside :func:`_dispatch_json` and :func:`_raw_body`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from sm import decoded_base64
from sm.client.decode_budget import BYTES_PER_MARK, MAX_UNCOUNTED_MARKS
from sm.client.sessions import Session
from sm.errors import BadInput, TooLarge, WrongPayload

JSON = "application/json"
JSON_LINES = "application/jsonlines"
NPY = "application/x-npy"
PNG = "image/png"
#: SageMaker's name for Triton's binary form: JSON of so many bytes, then the tensors.
BINARY = "application/vnd.sagemaker-triton.binary+json"

#: How a JSON object begins.
OBJECT = re.compile(rb"\s*\{")
#: The members of a dispatch request.
MEMBERS = {"modelname", "version", "payload", "parameters", "result_s3_uri"}
#: What those may be that may be left out; null is as good as that.
KINDS: Mapping[str, Any] = {"modelname": str, "version": (str, int), "parameters": dict, "result_s3_uri": str}
HEADER_PREFIX = "x-amzn-sagemaker-"


@dataclass(frozen=True)
class RawRecord:
    """A record that is a whole body: a picture, a text, a ``.npy`` array."""

    body: bytes
    content_type: str


@dataclass(frozen=True)
class Invocation:
    """One request for one model: its records and how they were asked for."""

    model: str
    records: Sequence[Any]
    #: Whether the caller sent a list, and so gets one.
    many: bool = False
    version: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: ``k=v`` pairs of the custom attributes: parameters where the client has one of that name.
    attributes: Mapping[str, str] = field(default_factory=dict)
    accept: str = JSON
    #: Whether the caller asked for ``accept``; False where it is the default.
    accept_named: bool = True
    #: The ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    session: Session | None = None
    #: What its client has the answer say beside the body; filled while the client works.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: Where in S3 the result is to go; empty: to the caller.
    result_s3_uri: str = ""


@dataclass(frozen=True)
class Address:
    """Model and version; empty where nobody said."""

    model: str
    version: str


class RecordLimit:
    """Counts the records of one request, in however many lines they stand, up to ``max_records``."""

    def __init__(self, max_records: int) -> None:
        self.max_records = max_records
        self._count = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """:class:`TooLarge`, and nothing is counted, if that makes more than ``max_records``."""
        with self._lock:
            if self._count + number > self.max_records:
                raise TooLarge(
                    f"the request has {self._count + number:,} records or more; "
                    f"at most {self.max_records:,} are accepted",
                    max_records=self.max_records,
                )
            self._count += number


@dataclass(frozen=True)
class Message:
    """A request as it came in. Header names are in lower case."""

    body: bytes
    headers: Mapping[str, str]
    query: Mapping[str, str]
    request_id: str
    #: The model that the path names. Nobody else is asked then.
    model: str = ""
    session: Session | None = None
    #: None: as many records as the body holds.
    record_limit: RecordLimit | None = None

    @property
    def content_type(self) -> str:
        return media_type(self.headers.get("content-type", JSON))

    @property
    def attributes(self) -> dict[str, str]:
        """The pairs of the custom attributes."""
        text = self.headers.get(f"{HEADER_PREFIX}custom-attributes")
        return custom_attributes(text) if text else {}


def read(
    message: Message,
    default_model: str,
    default_accept: str = JSON,
    takes_bodies: Callable[[str], bool] = lambda _: False,
) -> Invocation:
    """Tell the form of a request and read it. A client that ``takes_bodies`` gets any as it is, JSON too.

    Raises :class:`BadInput` for a body that cannot be understood, :class:`WrongPayload`, with the path of
    the field, for one of the wrong shape, and :class:`TooLarge` for too many records.
    """
    attributes = message.attributes
    address = read_address(message)
    whole = takes_bodies(address.model or default_model) and not is_dispatch(message)
    form = _dispatch_json if message.content_type == JSON and not whole else _raw_body
    members = form(message)
    asked = {name: value for name, value in message.query.items() if name not in ("modelname", "version")}
    payload = members["payload"]
    many = isinstance(payload, list)
    accept = choose_accept(message.headers.get("accept", ""), "")
    if message.record_limit is not None:
        message.record_limit.add(len(payload) if many else 1)
    return Invocation(
        model=message.model or members.get("modelname") or address.model or default_model,
        version=str(members.get("version") or address.version),
        records=payload if many else [payload],
        many=many,
        parameters={**asked, **(members.get("parameters") or {})},
        attributes=attributes,
        accept=accept or default_accept,
        accept_named=bool(accept),
        headers={name: value for name, value in message.headers.items() if name.startswith(HEADER_PREFIX)},
        request_id=message.request_id,
        session=message.session,
        result_s3_uri=members.get("result_s3_uri") or "",
    )


def read_address(message: Message) -> Address:
    """Whom a request's headers or its query name; a dispatch body may say otherwise."""
    target = message.headers.get(f"{HEADER_PREFIX}target-model", "")
    attributes, query = message.attributes, message.query
    return Address(
        message.model or attributes.get("modelname") or target or query.get("modelname", ""),
        attributes.get("version") or query.get("version", ""),
    )


def is_dispatch(message: Message) -> bool:
    """Whether a body is form 1 beyond doubt: it names a model, has a payload, and nothing foreign."""
    if message.content_type != JSON or b'"modelname"' not in message.body:
        return False
    try:
        body = orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(body, dict) and {"modelname", "payload"} <= body.keys() <= MEMBERS


def parse_json(body: bytes, parser: Callable[[bytes], Any] = orjson.loads) -> Any:
    """JSON as the standard has it: no NaN, and no deeper than the parser's 1,024 levels."""
    if not body or body.isspace():
        raise BadInput("the body is empty")
    try:
        return parser(body)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON: {error}") from None


def estimate_parsed_bytes(message: Message) -> int:
    """About how much memory the JSON of a large body takes once it is parsed; 0 for any other body.

    25 MiB of empty lists are 760 MiB of Python's objects. A comma or a bracket stands for each of these.
    """
    body = message.body
    if len(body) < decoded_base64.MIN_BYTES or not (message.content_type == JSON or OBJECT.match(body)):
        return 0
    return BYTES_PER_MARK * sum(_count_marks(body, mark) for mark in (b",", b"[", b"{"))


def _count_marks(body: bytes, mark: bytes) -> int:
    """How often ``mark`` stands in a body; 0 also for a few times.

    To find that there is none in a picture's base64 takes a thirtieth of the time that counting does.
    """
    at = -1
    for _ in range(MAX_UNCOUNTED_MARKS):
        at = body.find(mark, at + 1)
        if at < 0:
            return 0
    return body.count(mark)


def custom_attributes(text: str) -> dict[str, str]:
    """``k=v;k=v`` to a mapping; parts that are no pair are somebody else's and are left out."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


@lru_cache(maxsize=256)  # callers say the same again and again
def media_type(header: str) -> str:
    """A ``Content-Type`` without its parameters; JSON where there is none."""
    return header.split(";")[0].strip().lower() or JSON


@lru_cache(maxsize=256)
def choose_accept(header: str, default: str) -> str:
    """The content type a caller wants most; ``default`` where it takes anything."""
    best, weight = default, 0.0
    for part in header.split(","):
        kind, *options = (piece.strip().lower() for piece in part.split(";"))
        quality = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            value = float(quality)
        except ValueError:
            continue
        if kind and value > weight:
            best, weight = (default if kind == "*/*" else kind), value
    return best


def _dispatch_json(message: Message) -> dict[str, Any]:
    """Form 1: ``{"modelname", "version", "payload", "parameters"}``."""
    body = parse_json(message.body, decoded_base64.parse)
    if not isinstance(body, dict):
        raise BadInput(f"the body must be a JSON object with modelname and payload, not {_kind(body)}")
    if not MEMBERS.issuperset(body):
        name = next(name for name in body if name not in MEMBERS)
        raise WrongPayload(f"{name}: no such member; there are {', '.join(sorted(MEMBERS))}", field=name)
    for name, kinds in KINDS.items():
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise WrongPayload(f"{name}: may not be {_kind(value)}", field=name)
    if "payload" not in body:
        raise WrongPayload("payload: is missing", field="payload")
    if body["payload"] == []:
        raise WrongPayload("payload: the list is empty", field="payload")
    return body


def _raw_body(message: Message) -> dict[str, Any]:
    """Form 2: the body is the record. Whether the model takes such a body, its client says."""
    return {"payload": RawRecord(message.body, message.content_type)}


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
