"""The whole body as one record: a picture, a text, an array, or whatever a client of all bodies takes."""

from __future__ import annotations

from sm.client.base import Client
from sm.errors import UnsupportedType
from sm.http.media_types import choose_kind, kind_of, media_type, parse
from sm.http.messages import BINARY, JSON, OCTET_STREAM
from sm.router.forms.dispatch import check_members, is_dispatch
from sm.router.forms.form import Form, Reading
from sm.router.forms.v2 import OBJECT
from sm.router.request_types import DispatchRequest, Message, RawRecord


class AnyBody(Form):
    """Every body for a client that takes all of them, unless it is a dispatch request that names a model."""

    def has(self, reading: Reading) -> bool:
        return reading.client is not None and reading.client.payload.takes_bodies

    def read(self, reading: Reading) -> DispatchRequest:
        if reading.kind == JSON and is_dispatch(reading, naming_model=True):
            return reading.dispatch(check_members(reading.value))
        return reading.dispatch({"payload": reading.raw()})


class RawBody(Form):
    """A body of a type that the client takes; JSON is read as a request."""

    def has(self, reading: Reading) -> bool:
        return reading.client is not None and raw_record(reading.message, reading.client) is not None

    def read(self, reading: Reading) -> DispatchRequest:
        assert reading.client is not None
        return reading.dispatch({"payload": raw_record(reading.message, reading.client)})


class OtherBody(Form):
    """A body of no form: the client's own error says which types it takes."""

    def has(self, reading: Reading) -> bool:  # noqa: ARG002
        return True

    def read(self, reading: Reading) -> DispatchRequest:
        if OBJECT.match(reading.body) and is_dispatch(reading, naming_model=True):
            raise UnsupportedType(
                f"a dispatch request has the Content-Type {JSON}, not {reading.content_type[:100]!r}; "
                f"curl sends it with -H 'Content-Type: {JSON}'"
            )
        if reading.is_plain:
            raise UnsupportedType(
                f"this model has no client: it takes {BINARY}, or JSON with inputs under any content type"
            )
        return reading.dispatch({"payload": reading.raw()})


def raw_record(message: Message, client: Client) -> RawRecord | None:
    """Return a body as a record, if it is of a type that the client takes."""
    body_type = message.headers.get("content-type", "")
    content_type = media_type(body_type) if body_type else OCTET_STREAM
    if body_type and kind_of(body_type) == JSON:
        return None
    accepted = client.payload.content_types
    taken = content_type if content_type in accepted else choose_kind(content_type, message.body, accepted)
    return RawRecord(message.body, taken, parse(body_type or JSON).parameters) if taken else None


ANY_BODY, RAW_BODY, OTHER_BODY = AnyBody(), RawBody(), OtherBody()
