"""What a request is: its message, the four types that it may be, and the rules that choose one.

A body is parsed at most once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from sm.client.base import Client
from sm.client.decode_budget import BYTES_PER_MARK, MAX_UNCOUNTED_MARKS
from sm.client.hugging_face import Pipeline, pipeline_of
from sm.client.payloads import MIN_BASE64_BYTES, RequestContext, parse_body
from sm.client.results import Boxes
from sm.client.sessions import Session, Sessions
from sm.errors import BadInput, TooLarge, UnsupportedType, WrongPayload
from sm.http.media_types import (
    choose,
    choose_kind,
    is_json,
    kind_of,
    media_type,
    most_wanted,
    negotiate,
    parse,
)
from sm.http.messages import (
    BINARY,
    CSV,
    EVENTS,
    JSON,
    JSON_LINES,
    NPY,
    OCTET_STREAM,
    PNG,
    check_not_empty,
    not_json,
)
from sm.invocation import Invocation
from sm.models.table import Models, Served

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
    #: The parameters of the content type, such as ``header`` of CSV.
    options: Mapping[str, str] = MappingProxyType({})


class PipelineCall(NamedTuple):
    """A request ``{"inputs", "parameters"}`` as its caller sent it."""

    inputs: Any
    parameters: Mapping[str, Any]
    pipeline: Pipeline


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

    def place(self, number: int) -> str:
        """Return the place of a record in the request, for errors."""
        return f"{self.path}[{number}]" if self.many else self.path


class Address(NamedTuple):
    """Model and version; empty if the request names none."""

    model: str
    version: str
    #: Pairs of the custom attributes, which may be parameters.
    attributes: Mapping[str, str]


#: The address of a request that names no model.
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
    """Estimate the memory of a large body's parsed JSON or CSV; 0 for other bodies.

    25 MiB of empty lists become 760 MiB of Python objects. A comma, a bracket or a line stands for each of
    them. It is not part of the classification, because it decides whether the body may be parsed now.
    """
    body = message.body
    if len(body) < MIN_BASE64_BYTES:
        return 0
    if message.kind == JSON or OBJECT.match(body):
        marks: tuple[bytes, ...] = (b",", b"[", b"{")
    elif message.kind == CSV:
        marks = (b",", b"\n")
    else:
        return 0
    return BYTES_PER_MARK * sum(_count_marks(body, mark) for mark in marks)


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


#: What the box can make of a client's result, the best first. A stream is last: ``text/*`` means CSV.
OFFERS = (JSON, CSV, NPY, PNG, JSON_LINES, EVENTS)


@lru_cache(maxsize=256)
def choose_accept(header: str, default: str) -> str:
    """Return the type that a client should answer in: the caller's best of :data:`OFFERS`.

    ``default`` is the best of equally good ones. If the caller takes none of them, it is the type that it
    wants most: a client may make it itself. Empty if the caller names none.
    """
    return choose(header, tuple(dict.fromkeys((default, *OFFERS)))) or most_wanted(header)


#: What a list may be sent as, the best first.
LIST_OFFERS = (JSON, JSON_LINES, CSV)


def choose_list_accept(header: str, default: str, client: Client) -> str:
    """Return the type of the answer to a list. Raises :class:`~sm.errors.NotAcceptable` if there is none."""
    # Found objects have no line of CSV, so JSON is the best of a caller that takes both.
    kinds = LIST_OFFERS[:-1] if isinstance(client.result, Boxes) else LIST_OFFERS
    return negotiate(header, tuple(kind for kind in dict.fromkeys((default, *kinds)) if kind in kinds))


#: The members of a dispatch request.
MEMBERS = frozenset({"modelname", "version", "payload", "parameters"})
#: The members of a request in Hugging Face's form; its ``options`` mean nothing here, as in the container.
PIPELINE_MEMBERS = frozenset({"inputs", "parameters", "options", "modelname", "version"})
#: The members that the query may have too. All other names in the query are parameters.
ADDRESS_MEMBERS = ("modelname", "version")
#: The types of optional members. Null is the same as leaving the member out.
MEMBER_TYPES: Mapping[str, Any] = {
    "modelname": str,
    "version": (str, int),
    "parameters": dict,
}
#: A body that begins with one of these members is recognised as v2 without parsing it.
STARTS_AS_V2 = re.compile(rb'\s*\{\s*"(inputs|outputs|id)"\s*:')
#: A body that begins like this is a dispatch request, and is not searched: usually a picture follows.
STARTS_AS_DISPATCH = re.compile(rb'\s*\{\s*("modelname"\s*:\s*"[^"\\]*"\s*,\s*)?"payload"\s*:')
#: Most dispatch requests begin with their model, so it is known before the body is parsed.
STARTS_WITH_MODEL = re.compile(rb'\s*\{\s*"modelname"\s*:\s*"([^"\\]*)"')
#: The values of ``requestType`` that open and close a session.
NEW, CLOSE = "NEW_SESSION", "CLOSE"
#: Content-Encodings that compress a body, so that its bytes are not those of its content type.
COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "br", "zstd"})
#: The paths of Triton's own API that run a model.
INFERENCE = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")
#: Bytes of a body that opens or closes a session.
MAX_COMMAND_BYTES = 1024

#: A request for a model; a line of JSON lines may be one too.
ModelRequest = DispatchRequest | TritonRequest
ClassifiedRequest = ModelRequest | LinesRequest | SessionCommand


@dataclass(frozen=True)
class Classifier:
    """The rules for the models that are served. ``default_model``: the model of a request that names none."""

    models: Models
    default_model: str = ""
    default_accept: str = JSON
    #: How Triton handles JSON bodies: ``infer``, ``generate`` or ``generate_stream``.
    inference_type: str = "infer"
    #: None if sessions are off.
    sessions: Sessions | None = None
    #: Records that a request may have; None for no limit.
    max_records: int | None = None

    def parse(self, message: Message, invocation: Invocation | None = None) -> ClassifiedRequest:
        """Classify a request, and look up its client.

        Args:
            message: The request as it came.
            invocation: Uses the model. Gets the session, by which a version of the model may be chosen.

        Raises:
            BadInput: The body cannot be parsed.
            WrongPayload: The body has the wrong shape; the error names the field.
            TooLarge: The request has too many records.
            UnsupportedType: The model does not accept the content type.
            UnknownModel: The request names a model that is not served, or one without a client.
        """
        if message.target:
            match = INFERENCE.fullmatch(message.target.partition("?")[0])
            assert match is not None
            version = (match[2] or "").removeprefix("/versions/")
            return TritonRequest(message, message.model, version, match[3])
        session = None
        identity = message.headers.get(SESSION_HEADER)
        if identity is not None:
            if self.sessions is None:
                raise BadInput(
                    "stateful sessions are off; SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true turns them on"
                )
            command = read_session_command(identity, message.body)
            if command is not None:
                return command
            session = self.sessions.get(identity)
            if invocation is not None:
                invocation.session = session
        return self._parse_body(message, invocation, session)

    def peek_model(self, message: Message) -> str:
        """Return the name of a request's model without parsing its body; empty if it has to be parsed.

        It is the path's, else that of the first member of a JSON body (or of the first line), else that of
        the headers. Apart from :meth:`parse`, as the request may have to wait before it is parsed.
        """
        body, name = message.body, message.model
        if SESSION_HEADER in message.headers:
            return ""  # It may open or close the session, which needs no model.
        if not name and (match := STARTS_WITH_MODEL.match(body)):
            name = match[1].decode(errors="replace")
        elif not name and b'"modelname"' not in body:
            name = read_address(message).model or self.default_model
        return name

    def parse_line(
        self, line: Message, lines: LinesRequest, invocation: Invocation | None = None
    ) -> ModelRequest:
        """Classify a line: like any other request, or a bare payload. It is never streamed."""
        request = self._parse_body(line, invocation, lines.session, lines.limit, is_line=True)
        assert not isinstance(request, LinesRequest)  # a line has the content type of JSON
        return request

    def _parse_body(
        self,
        message: Message,
        invocation: Invocation | None,
        session: Session | None,
        limit: RecordLimit | None = None,
        is_line: bool = False,
    ) -> ModelRequest | LinesRequest:
        models, headers = self.models, message.headers
        in_headers = TARGET_MODEL in headers or CUSTOM_ATTRIBUTES in headers
        address = read_address(message) if in_headers or message.query or message.model else NO_ADDRESS
        name, version = address.model or self.default_model, address.version
        served = models.use(name, invocation) if name else None
        if message.model and served is None:
            # Before the body is read: the platform loads a model again when it gets a 404.
            raise models.explain(message.model)
        client = None if served is None else served.client
        if (
            headers.get("content-type", JSON) == JSON
            and self.inference_type == "infer"
            and not is_line
            and STARTS_AS_DISPATCH.match(message.body)
            and (client is None or not client.payload.takes_bodies)
            and "content-encoding" not in headers
        ):
            # Nearly all requests: no other rule finds another form.
            members = read_members(message.body)
            model = message.model or members.get("modelname") or name
            if model != name:
                served = models.use(model, invocation)
            return self._dispatch_request(message, model, served, address, members, session, None)

        def dispatch(members: Mapping[str, Any], call: PipelineCall | None) -> DispatchRequest:
            model = message.model or members.get("modelname") or name
            found = served if model == name else models.use(model, invocation)
            return self._dispatch_request(message, model, found, address, members, session, limit, call)

        return self._find_form(message, name, version, served, session, dispatch, is_line)

    def _find_form(
        self,
        message: Message,
        name: str,
        version: str,
        served: Served | None,
        session: Session | None,
        dispatch: Callable[[Mapping[str, Any], PipelineCall | None], DispatchRequest],
        is_line: bool,
    ) -> ModelRequest | LinesRequest:
        """Find the form of a body that does not begin as nearly all do: the first rule that fits."""
        body, client = JsonBody(message.body, is_line), None if served is None else served.client
        body_type = message.headers.get("content-type", JSON)
        content_type, kind = media_type(body_type), kind_of(body_type)
        if client is not None and client.payload.takes_bodies:
            # Such a client gets every body unchanged, except a dispatch request that names a model.
            if kind == JSON and body.is_dispatch(naming_model=True):
                return dispatch(body.dispatch_members(), None)
            return dispatch({"payload": RawRecord(message.body, content_type)}, None)
        if kind == JSON_LINES:
            most = self.max_records
            return LinesRequest(message, session, None if most is None else RecordLimit(most))
        if BINARY in body_type.lower():
            return TritonRequest(message, name, version, is_binary=True)
        is_plain = served is not None and client is None
        coding = message.headers.get("content-encoding", "").strip().lower()
        if coding in COMPRESSIONS:
            if is_plain:
                return TritonRequest(message, name, version)  # Triton decompresses it.
            raise UnsupportedType(
                f"a body with the Content-Encoding {coding} is not accepted here; send it uncompressed"
            )
        if client is not None and (record := raw_record(message, client)) is not None:
            return dispatch({"payload": record}, None)
        takes_json = is_json(kind)  # application/vnd.x+json, if the client does not take it itself
        if self.inference_type == "infer":
            if body.has_inputs():
                if client is None or not takes_json or body.is_v2():
                    return TritonRequest(message, name, version)
                call, members = body.pipeline_call(client)
                return dispatch(members, call)
        elif (takes_json or OBJECT.match(message.body)) and not body.is_dispatch():
            return TritonRequest(message, name, version, "generate" if is_line else self.inference_type)
        if takes_json:
            return dispatch(body.dispatch_members(), None)
        check_type(message, body, is_plain)
        # The client's own error says which types it takes.
        return dispatch({"payload": RawRecord(message.body, content_type)}, None)

    def _dispatch_request(
        self,
        message: Message,
        model: str,
        served: Served | None,
        address: Address,
        members: Mapping[str, Any],
        session: Session | None,
        limit: RecordLimit | None,
        call: PipelineCall | None = None,
    ) -> DispatchRequest:
        payload = members["payload"]
        many = isinstance(payload, list)
        records = payload if many else [payload]
        if limit is not None:
            limit.add(len(payload) if many else 1)
        elif many and self.max_records is not None:
            RecordLimit(self.max_records).add(len(payload))
        if served is None or served.client is None:
            raise self.models.explain(model)
        client = served.client
        accept = message.headers.get("accept", "")
        chosen_accept = choose_accept(accept, self.default_accept) if accept else self.default_accept
        platform_headers = {}
        for header, value in message.headers.items():
            if header.startswith(HEADER_PREFIX):
                platform_headers[header] = value
        parameters = members.get("parameters") or {}
        if message.query:
            query = {name: value for name, value in message.query.items() if name not in ADDRESS_MEMBERS}
            parameters = {**query, **parameters}
        streamed = chosen_accept == EVENTS or (message.in_parts and client.streams())
        if call is not None:
            many = isinstance(call.inputs, list) and len(records) == len(call.inputs)
            chosen_accept = chosen_accept if streamed else negotiate(accept, (JSON,))
        elif many and not streamed:
            chosen_accept = choose_list_accept(accept, chosen_accept, client)
        return DispatchRequest(
            model,
            records,
            many,
            parameters,
            address.attributes,
            message.request_id,
            streamed,
            client=client,
            version=str(members.get("version") or address.version),
            accept=chosen_accept,
            headers=platform_headers,
            session=session,
            accept_header=accept,
            path="payload" if call is None else "inputs",
            pipeline=call,
        )


def raw_record(message: Message, client: Client) -> RawRecord | None:
    """Return a body as a record, if it is of a type that the client takes; JSON is read as a request."""
    body_type = message.headers.get("content-type", "")
    content_type = media_type(body_type) if body_type else OCTET_STREAM
    if body_type and kind_of(body_type) == JSON:
        return None
    accepted = client.payload.content_types
    taken = content_type if content_type in accepted else choose_kind(content_type, message.body, accepted)
    return RawRecord(message.body, taken, parse(body_type or JSON).parameters) if taken else None


def check_type(message: Message, body: JsonBody, is_plain: bool) -> None:
    """Refuse a body that is not JSON by its type, and for which there is no client to say so itself."""
    if OBJECT.match(message.body) and body.is_dispatch(naming_model=True):
        content_type = media_type(message.headers.get("content-type", JSON))
        raise UnsupportedType(
            f"a dispatch request has the Content-Type {JSON}, not {content_type[:100]!r}; "
            f"curl sends it with -H 'Content-Type: {JSON}'"
        )
    if is_plain:
        raise UnsupportedType(
            f"this model has no client: it takes {BINARY}, or JSON with inputs under any content type"
        )


def read_members(body: bytes) -> Mapping[str, Any]:
    """Parse a dispatch request and return its members."""
    try:
        value = orjson.loads(body) if len(body) < MIN_BASE64_BYTES else parse_body(body)
    except orjson.JSONDecodeError as error:
        raise not_json(error) from None
    return check_members(value)


class JsonBody:
    """A body that may be JSON. It is parsed when a rule needs it, and at most once.

    ``bare``: the body may also be a payload alone, without a dispatch request around it.
    """

    __slots__ = ("_bare", "_body", "_error", "_parsed", "_value")

    def __init__(self, body: bytes, bare: bool = False) -> None:
        self._body, self._bare = body, bare
        self._parsed, self._value = False, None
        self._error: orjson.JSONDecodeError | None = None

    def is_dispatch(self, naming_model: bool = False) -> bool:
        """True if it is certainly a dispatch request; with ``naming_model``, one that names its model."""
        if b'"payload"' not in self._body or (naming_model and b'"modelname"' not in self._body):
            return False
        value = self._parse()
        return has_payload(value) and (not naming_model or "modelname" in value)

    def has_inputs(self) -> bool:
        """True if it is a JSON object with ``inputs`` and without ``payload``: Triton's or Hugging Face's."""
        body = self._body
        if not OBJECT.match(body) or STARTS_AS_DISPATCH.match(body) or b'"inputs"' not in body:
            return False
        if STARTS_AS_V2.match(body):
            return True
        value = self._parse()
        return isinstance(value, dict) and "inputs" in value and "payload" not in value

    def is_v2(self) -> bool:
        """True if its ``inputs`` are tensors, or what may be meant as tensors; also if it is not JSON."""
        value = self._parse()
        inputs = value.get("inputs") if isinstance(value, dict) else None
        if "inputs" not in (value or ()):
            return True  # Triton says what is wrong
        return isinstance(inputs, list) and all(
            isinstance(tensor, dict) and "name" in tensor and ("shape" in tensor or "datatype" in tensor)
            for tensor in inputs
        )

    def pipeline_call(self, client: Client) -> tuple[PipelineCall, Mapping[str, Any]]:
        """Return a request in Hugging Face's form, and the members of the dispatch request that it means.

        Raises:
            WrongPayload: A member is unknown or of the wrong type; the error names it.
        """
        value = self._parse()
        if unknown := value.keys() - PIPELINE_MEMBERS:
            name = min(unknown)
            raise WrongPayload(
                f"{name}: no such member beside inputs; there are {', '.join(sorted(PIPELINE_MEMBERS))}",
                field=name,
            )
        check_types(value)
        inputs, parameters = value["inputs"], value.get("parameters") or {}
        if inputs is None or inputs == []:
            raise WrongPayload("inputs: is empty", field="inputs")
        call = PipelineCall(inputs, parameters, pipeline_of(client))
        records, own_parameters = call.pipeline.read(inputs, parameters)
        address = {name: value[name] for name in ADDRESS_MEMBERS if value.get(name) is not None}
        return call, {**address, "payload": records, "parameters": own_parameters}

    def dispatch_members(self) -> Mapping[str, Any]:
        """Return the members of the dispatch request; a bare payload becomes its ``payload``."""
        check_not_empty(self._body)
        value = self._parse()
        if self._error is not None:
            raise not_json(self._error) from None
        if self._bare and self._is_bare(value):
            value = {"payload": value}
        return check_members(value)

    def _parse(self) -> Any:
        """Return the value; None also if the body is not JSON."""
        if not self._parsed:
            self._parsed = True
            try:
                self._value = parse_body(self._body, self._is_bare if self._bare else None)
            except orjson.JSONDecodeError as error:
                self._error = error
        return self._value

    def _is_bare(self, value: Any) -> bool:
        """True if ``value`` is a payload without a dispatch request around it."""
        return b'"payload"' not in self._body or not has_payload(value)


def has_payload(value: Any) -> bool:
    """True if a JSON value is a dispatch request: an object with a payload and no unknown member."""
    return isinstance(value, dict) and "payload" in value and MEMBERS.issuperset(value)


def check_members(body: Any) -> Mapping[str, Any]:
    """Check the members of a dispatch request, and return them.

    Raises:
        BadInput: It is not JSON object.
        WrongPayload: A member is unknown, missing or of the wrong type; the error names it.
    """
    if not isinstance(body, dict):
        raise BadInput(f"the body must be a JSON object with modelname and payload, not {_type_name(body)}")
    if not MEMBERS.issuperset(body):
        name = next(name for name in body if name not in MEMBERS)
        raise WrongPayload(f"{name}: no such member; there are {', '.join(sorted(MEMBERS))}", field=name)
    check_types(body)
    if "payload" not in body:
        raise WrongPayload("payload: is missing", field="payload")
    if body["payload"] == []:
        raise WrongPayload("payload: the list is empty", field="payload")
    return body


def check_types(members: Mapping[str, Any]) -> None:
    """Raise :class:`WrongPayload` for a member of the wrong type."""
    for name, value in members.items():
        types = MEMBER_TYPES.get(name)
        if types and value is not None and (value is True or value is False or not isinstance(value, types)):
            raise WrongPayload(f"{name}: may not be {_type_name(value)}", field=name)


def read_session_command(identity: str, body: bytes) -> SessionCommand | None:
    """Return the command in a request of the session ``identity``; None if it is an ordinary request."""
    request_type = _request_type(body)
    if identity == NEW:
        if request_type != NEW:
            raise BadInput(f'a new session is opened by the body {{"requestType":"{NEW}"}} and no other')
        return SessionCommand()
    if request_type is None:
        return None
    if request_type != CLOSE:
        raise BadInput(
            f"requestType {str(request_type)[:64]!r} is for no session that is open; there is {CLOSE}"
        )
    return SessionCommand(close=identity)


def _request_type(body: bytes) -> object:
    """Return the type in a body ``{"requestType": ...}``; None for any other body."""
    if len(body) > MAX_COMMAND_BYTES or b'"requestType"' not in body:
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value["requestType"] if isinstance(value, dict) and value.keys() == {"requestType"} else None


def _type_name(value: object) -> str:
    """Return what JSON calls the type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
