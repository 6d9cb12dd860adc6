"""An invocation: bytes become one here, and its result becomes bytes here.

The forms of a request and where they are told apart: :func:`read`. A later form gets a function of
its own beside :func:`_dispatch_json` and :func:`_raw_body`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from sm import bulk
from sm.errors import BadInput, ClientFailed, TriremeError, WrongPayload
from sm.results import Encoded, Picture, encodable
from sm.sessions import Session

JSON = "application/json"
JSON_LINES = "application/jsonlines"
NPY = "application/x-npy"
PNG = "image/png"
#: SageMaker's name for Triton's binary form: JSON of so many bytes, then the tensors.
BINARY = "application/vnd.sagemaker-triton.binary+json"

#: The members of a dispatch request.
MEMBERS = {"modelname", "version", "payload", "parameters", "result_s3_uri"}
#: What those may be that may be left out; null is as good as that.
KINDS: Mapping[str, Any] = {"modelname": str, "version": (str, int), "parameters": dict, "result_s3_uri": str}
PREFIX = "x-amzn-sagemaker-"


@dataclass(frozen=True)
class Raw:
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
    #: The ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    session: Session | None = None
    #: What its client has the answer say beside the body; filled while the client works.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: Where in S3 the result is to go; empty: to the caller.
    result_s3_uri: str = ""


@dataclass(frozen=True)
class Answer:
    """What goes back to the caller: a body, or chunks of one that is still being made."""

    body: bytes | Iterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def whole(self) -> bytes:
        """The body in one piece; of a stream, once it has ended."""
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


@dataclass(frozen=True)
class Address:
    """Model and version; empty where nobody said."""

    model: str
    version: str


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

    @property
    def content_type(self) -> str:
        return media_type(self.headers.get("content-type", JSON))

    @property
    def attributes(self) -> dict[str, str]:
        """The pairs of the custom attributes."""
        text = self.headers.get(f"{PREFIX}custom-attributes")
        return custom_attributes(text) if text else {}


def read(
    message: Message,
    default_model: str,
    default_accept: str = JSON,
    takes_bodies: Callable[[str], bool] = lambda _: False,
) -> Invocation:
    """Tell the form of a request and read it. A client that ``takes_bodies`` gets any as it is, JSON too.

    Raises :class:`BadInput` for a body that cannot be understood and :class:`WrongPayload`, with the
    path of the field, for one of the wrong shape.
    """
    attributes = message.attributes
    address = addressed(message)
    whole = takes_bodies(address.model or default_model) and not is_dispatch(message)
    form = _dispatch_json if message.content_type == JSON and not whole else _raw_body
    members = form(message)
    asked = {name: value for name, value in message.query.items() if name not in ("modelname", "version")}
    payload = members["payload"]
    many = isinstance(payload, list)
    return Invocation(
        model=message.model or members.get("modelname") or address.model or default_model,
        version=str(members.get("version") or address.version),
        records=payload if many else [payload],
        many=many,
        parameters={**asked, **(members.get("parameters") or {})},
        attributes=attributes,
        accept=accepted(message.headers.get("accept", ""), default_accept),
        headers={name: value for name, value in message.headers.items() if name.startswith(PREFIX)},
        request_id=message.request_id,
        session=message.session,
        result_s3_uri=members.get("result_s3_uri") or "",
    )


def addressed(message: Message) -> Address:
    """Whom a request's headers or its query name; a dispatch body may say otherwise."""
    target = message.headers.get(f"{PREFIX}target-model", "")
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


def custom_attributes(text: str) -> dict[str, str]:
    """``k=v;k=v`` to a mapping; parts that are no pair are somebody else's and are left out."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


@lru_cache(maxsize=256)  # callers say the same again and again
def media_type(header: str) -> str:
    """A ``Content-Type`` without its parameters; JSON where there is none."""
    return header.split(";")[0].strip().lower() or JSON


@lru_cache(maxsize=256)
def accepted(header: str, default: str) -> str:
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


def write(invocation: Invocation, results: Sequence[object]) -> Answer:
    """Results to an answer, with the headers that the client has set."""
    answer = _written(invocation, results)
    if not invocation.answer_headers:
        return answer
    return replace(answer, headers={**answer.headers, **invocation.answer_headers})


def _written(invocation: Invocation, results: Sequence[object]) -> Answer:
    """Results to bytes, in the type the caller accepts where they can be had in it, else JSON.

    A result that is a :class:`TriremeError` belongs to a record that failed: it takes its place in a
    list, and is raised when no record succeeded.
    """
    failures = [result for result in results if isinstance(result, TriremeError)]
    if failures and len(failures) == len(results):
        raise failures[0]
    if isinstance(results[0], Encoded):
        return Answer(results[0].body, results[0].content_type)
    if not invocation.many:
        binary = _binary(results[0], invocation.accept)
        if binary is not None:
            return Answer(binary, invocation.accept)
    try:
        return _json(invocation, [_shown(result) for result in results])
    except (TypeError, ValueError) as error:
        raise ClientFailed(f"the result of {invocation.model!r} cannot be sent: {error}") from error


def _json(invocation: Invocation, shown: list[object]) -> Answer:
    if invocation.many and invocation.accept == JSON_LINES:
        return Answer(b"\n".join(map(dumps, shown)), JSON_LINES)
    return Answer(dumps({"modelname": invocation.model, "result": shown if invocation.many else shown[0]}))


def write_error(error: TriremeError, request_id: str) -> Answer:
    """The one shape of every error."""
    body = {"error": error.sentence, "code": error.code, "request_id": request_id, **error.details}
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return Answer(dumps(body), status=error.status, headers=headers)


def dumps(value: object) -> bytes:
    """JSON bytes; NumPy values included. NaN and infinity become null, since JSON has neither."""
    return orjson.dumps(value, default=encodable, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _dispatch_json(message: Message) -> dict[str, Any]:
    """Form 1: ``{"modelname", "version", "payload", "parameters"}``."""
    body = parse_json(message.body, bulk.parse)
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
    return {"payload": Raw(message.body, message.content_type)}


def _binary(result: object, accept: str) -> bytes | None:
    if accept == PNG and isinstance(result, Picture):
        return result.png()
    if accept == NPY and not isinstance(result, Picture):
        return _npy(result)
    return None


def _npy(result: object) -> bytes | None:
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def _shown(result: object) -> object:
    if isinstance(result, TriremeError):
        return {"error": result.sentence, "code": result.code, **result.details}
    if isinstance(result, Picture):
        return result.as_json()
    return result


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
