"""Read a request: its type, its model, the type of its answer. Its form is a row of ``sm/router/forms``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sm.client.base import Client
from sm.client.decode_budget import bytes_of_json, bytes_of_marks
from sm.client.results import Boxes
from sm.client.sessions import Session, Sessions
from sm.errors import BadInput, TriremeError
from sm.http.media_types import choose, is_json, most_wanted, negotiate
from sm.http.messages import CSV, EVENTS, JSON, JSON_LINES, LARGE_BODY_BYTES, NPY, PNG, strict_json
from sm.invocation import Invocation
from sm.models.table import Models, ResolvedModel
from sm.router.forms import v2
from sm.router.forms.dispatch import ADDRESS_MEMBERS, DISPATCH
from sm.router.forms.form import Reading
from sm.router.forms.session import read_session_command
from sm.router.forms.table import Forms
from sm.router.request_types import (
    CUSTOM_ATTRIBUTES,
    HEADER_PREFIX,
    SESSION_HEADER,
    TARGET_MODEL,
    Address,
    Call,
    ClassifiedRequest,
    DispatchRequest,
    LinesRequest,
    Message,
    ModelRequest,
    RecordLimit,
    SessionCommand,
)

#: The address of a request that names no model.
NO_ADDRESS = Address("", "", MappingProxyType({}))


def read_address(message: Message) -> Address:
    """Read model and version from headers or query; a body may override them."""
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


def estimate_parsed_bytes(message: Message) -> int:
    """Estimate the memory of a large body's parsed JSON or CSV; 0 for other bodies.

    It is not part of the classification, because it decides whether the body may be parsed now.
    """
    body = message.body
    if len(body) < LARGE_BODY_BYTES:
        return 0
    if message.kind == JSON or v2.OBJECT.match(body):
        return bytes_of_json(body)
    return bytes_of_marks(body.count(b",") + body.count(b"\n")) if message.kind == CSV else 0


#: Types that the box can make of a client's result, the best first. A stream is last: ``text/*`` means CSV.
OFFERS = (JSON, CSV, NPY, PNG, JSON_LINES, EVENTS)


@lru_cache(maxsize=256)
def choose_accept(header: str, default: str) -> str:
    """Return the type that a client should answer in: the caller's best of :data:`OFFERS`.

    ``default`` is the best of equally good ones. If the caller takes none of them, it is the type that it
    wants most: a client may make it itself. Empty if the caller names none.
    """
    return choose(header, tuple(dict.fromkeys((default, *OFFERS)))) or most_wanted(header)


#: Types that a list may be sent as, the best first.
LIST_OFFERS = (JSON, JSON_LINES, CSV)


def choose_list_accept(header: str, default: str, client: Client) -> str:
    """Return the type of the answer to a list. Raises :class:`~sm.errors.NotAcceptable` if there is none."""
    # Found objects have no line of CSV, so JSON is the best of a caller that takes both.
    kinds = LIST_OFFERS[:-1] if isinstance(client.result, Boxes) else LIST_OFFERS
    return negotiate(header, tuple(kind for kind in dict.fromkeys((default, *kinds)) if kind in kinds))


#: Most dispatch requests begin with their model, so it is known before the body is parsed.
STARTS_WITH_MODEL = re.compile(rb'\s*\{\s*"modelname"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True)
class RequestClassifier:
    """Reads requests for the models that are served. ``default_model``: that of a request that names none."""

    models: Models
    default_model: str = ""
    default_accept: str = JSON
    #: How Triton handles JSON bodies: ``infer``, ``generate`` or ``generate_stream``.
    inference_type: str = "infer"
    #: None if sessions are off.
    sessions: Sessions | None = None
    #: Records that a request may have; None for no limit.
    max_records: int | None = None
    forms: Forms = field(default_factory=Forms.load)

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
            return v2.read_path(message)
        session = None
        if SESSION_HEADER in message.headers and not message.path:
            found = self._session(message, invocation)
            if isinstance(found, SessionCommand):
                return found
            session = found
        try:
            return self._read(message, invocation, session)
        except BadInput:
            if (request := self._read_with_nan(message, invocation, session)) is None:
                raise
            return request

    def _session(self, message: Message, invocation: Invocation | None) -> Session | SessionCommand:
        """Return the request's session, or what it does with one."""
        identity = message.headers[SESSION_HEADER]
        if self.sessions is None:
            raise BadInput("stateful sessions are off; SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true turns them on")
        command = read_session_command(identity, message.body)
        if command is not None:
            return command
        session = self.sessions.get(identity)
        if invocation is not None:
            invocation.session = session
        return session

    def peek_model(self, message: Message) -> str:
        """Return the name of a request's model without parsing its body; empty if it has to be parsed.

        It is the path's, else that of the first member of a JSON body (or of the first line), else that of
        the headers. Apart from :meth:`parse`, as the request may have to wait before it is parsed.
        """
        body, name = message.body, message.model
        if message.path or SESSION_HEADER in message.headers:
            return ""  # A form says itself where its model is; a command for a session needs none.
        if not name and (match := STARTS_WITH_MODEL.match(body)):
            name = match[1].decode(errors="replace")
        elif not name and b'"modelname"' not in body:
            name = read_address(message).model or self.default_model
        return name

    def parse_line(
        self, line: Message, lines: LinesRequest, invocation: Invocation | None = None
    ) -> ModelRequest:
        """Classify a line: like any other request, or a bare payload. It is never streamed."""
        known = invocation, lines.session, lines.limit, True
        try:
            request: ClassifiedRequest | None = self._read(line, *known)
        except BadInput:
            if (request := self._read_with_nan(line, *known)) is None:
                raise
        assert isinstance(request, ModelRequest)  # a line has the content type of JSON
        return request

    def _read_with_nan(self, message: Message, *known: Any) -> DispatchRequest | None:
        """Read a body that is JSON but for the word NaN, if its client takes that for a missing value."""
        body = strict_json(message.body, b"NaN") if b"NaN" in message.body else message.body
        if body is not message.body and is_json(message.kind):
            with contextlib.suppress(TriremeError):
                request = self._read(message._replace(body=body), *known)
                if isinstance(request, DispatchRequest) and request.client.payload.reads_nan:
                    return request
        return None

    def _read(
        self,
        message: Message,
        invocation: Invocation | None,
        session: Session | None,
        limit: RecordLimit | None = None,
        is_line: bool = False,
    ) -> ClassifiedRequest:
        models, headers = self.models, message.headers
        in_headers = TARGET_MODEL in headers or CUSTOM_ATTRIBUTES in headers
        address = read_address(message) if in_headers or message.query or message.model else NO_ADDRESS
        name = address.model or self.default_model
        served = models.use(name, invocation) if name and not message.path else None
        if message.model and served is None:
            # Before the body is read: the platform loads a model again when it gets a 404.
            raise models.explain(message.model)
        if self.inference_type == "infer" and not is_line and not message.path:
            members = DISPATCH.read_first(message, None if served is None else served.client)
            if members is not None:
                # Nearly all requests: no row has to be asked.
                model = message.model or members.get("modelname") or name
                if model != name:
                    served = models.use(model, invocation)
                return self._request(message, model, served, address, session, None, members)

        def dispatch(members: Mapping[str, Any], call: Call | None = None) -> DispatchRequest:
            model = message.model or members.get("modelname") or name
            found = served if model == name and not message.path else models.use(model, invocation)
            return self._request(message, model, found, address, session, limit, members, call)

        reading = Reading(
            message,
            models,
            address,
            name,
            invocation,
            self.inference_type,
            choose_accept(headers.get("accept", ""), self.default_accept),
            session,
            self.max_records,
            is_line,
            dispatch,
        )
        if not message.path:
            reading.served, reading.client = served, None if served is None else served.client
        rows = self.forms.paths[message.path] if message.path else self.forms.rows
        form = next((row for row in rows if row.has(reading)), rows[-1])
        try:
            found = form.read(reading)
        finally:
            if message.path and invocation is not None:
                invocation.form = form, reading.echo
        if message.path and SESSION_HEADER in headers:  # an error of it has the form's shape
            command = self._session(message, invocation)
            if isinstance(command, SessionCommand):
                return command
            session = command
        if not isinstance(found, Call):
            return found
        return dispatch({"modelname": found.model, "version": found.version, "payload": found.records}, found)

    def _request(
        self,
        message: Message,
        model: str,
        served: ResolvedModel | None,
        address: Address,
        session: Session | None,
        limit: RecordLimit | None,
        members: Mapping[str, Any],
        call: Call | None = None,
    ) -> DispatchRequest:
        """Return a request for a client."""
        payload = members["payload"]
        many = isinstance(payload, list) or call is not None
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
        version = members.get("version") or address.version
        if message.query and not message.path:
            query = {name: value for name, value in message.query.items() if name not in ADDRESS_MEMBERS}
            parameters = {**query, **parameters}
        streamed = chosen_accept == EVENTS or (message.in_parts and client.streams())
        if call is not None:
            many, parameters = call.many, {**parameters, **call.parameters}
            chosen_accept = chosen_accept if streamed else negotiate(accept, (call.content_type,))
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
            version=str(version),
            accept=chosen_accept,
            headers=platform_headers,
            session=session,
            accept_header=accept,
            call=call,
        )
