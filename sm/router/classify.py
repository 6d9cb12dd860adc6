"""The rules that choose a request's type, its model and the type of its answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from sm.client.base import Client
from sm.client.results import Boxes
from sm.client.sessions import Session, Sessions
from sm.errors import BadInput, TriremeError, UnsupportedType
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
from sm.http.messages import BINARY, CSV, EVENTS, JSON, JSON_LINES, NPY, OCTET_STREAM, PNG, strict_json
from sm.invocation import Invocation
from sm.models.table import Models, Served
from sm.router.json_bodies import ADDRESS_MEMBERS, OBJECT, STARTS_AS_DISPATCH, JsonBody, read_members
from sm.router.request_types import (
    CUSTOM_ATTRIBUTES,
    HEADER_PREFIX,
    SESSION_HEADER,
    TARGET_MODEL,
    ClassifiedRequest,
    DispatchRequest,
    LinesRequest,
    Message,
    ModelRequest,
    PipelineCall,
    RawRecord,
    RecordLimit,
    TritonRequest,
)
from sm.router.session_commands import read_session_command


class Address(NamedTuple):
    """Model and version; empty if the request names none."""

    model: str
    version: str
    #: Pairs of the custom attributes, which may be parameters.
    attributes: Mapping[str, str]


#: The address of a request that names no model.
NO_ADDRESS = Address("", "", MappingProxyType({}))


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


#: Most dispatch requests begin with their model, so it is known before the body is parsed.
STARTS_WITH_MODEL = re.compile(rb'\s*\{\s*"modelname"\s*:\s*"([^"\\]*)"')
#: Content-Encodings that compress a body, so that its bytes are not those of its content type.
COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "br", "zstd"})
#: The paths of Triton's own API that run a model.
INFERENCE = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")


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
        return self._parse_with_nan(
            message, partial(self._parse_body, invocation=invocation, session=session)
        )

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
        parse = partial(
            self._parse_body, invocation=invocation, session=lines.session, limit=lines.limit, is_line=True
        )
        request = self._parse_with_nan(line, parse)
        assert not isinstance(request, LinesRequest)  # a line has the content type of JSON
        return request

    @staticmethod
    def _parse_with_nan(
        message: Message, parse: Callable[[Message], ModelRequest | LinesRequest]
    ) -> ModelRequest | LinesRequest:
        """Parse a body. If it is JSON but for the word NaN, its client may read that as a missing value."""
        try:
            return parse(message)
        except BadInput:
            body = strict_json(message.body, b"NaN") if b"NaN" in message.body else message.body
            if body is message.body or not is_json(message.kind):
                raise
            with contextlib.suppress(TriremeError):
                request = parse(message._replace(body=body))
                if isinstance(request, DispatchRequest) and request.client.payload.reads_nan:
                    return request
            raise

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
        if message.form is not None:
            return self._dispatch_request(message, name, served, address, message.form.members, session, None)
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
            if takes_json and client is not None and (found := body.table_call(client)) is not None:
                accept = message.headers.get("accept", "")
                # Only JSON has the form's own answer.
                is_json_wanted = choose_accept(accept, self.default_accept) == JSON
                return dispatch(found[1], found[0] if is_json_wanted else None)
            if body.has_inputs():
                # AWS's SDK for JavaScript calls a body without a ContentType a stream of bytes.
                if client is None or not (takes_json or kind == OCTET_STREAM) or body.is_v2():
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
        many = isinstance(payload, list) or message.form is not None
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
            path="payload" if call is None else call.path,
            pipeline=call,
            form=message.form,
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
