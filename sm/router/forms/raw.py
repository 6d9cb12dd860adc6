"""The whole body as one record: a picture, a text, an array, or whatever a client of all bodies takes."""

from __future__ import annotations

from sm.errors import UnsupportedType
from sm.http.messages import BINARY, JSON
from sm.router.forms.dispatch import check_members, is_dispatch
from sm.router.forms.form import Form, Reading
from sm.router.forms.v2 import OBJECT
from sm.router.request_types import DispatchRequest


class AnyBody(Form):
    """Every body for a client that takes all of them, unless it is a dispatch request that names a model."""

    def has(self, reading: Reading) -> bool:
        return reading.client is not None and reading.client.payload.takes_bodies

    def read(self, reading: Reading) -> DispatchRequest:
        if reading.kind == JSON and is_dispatch(reading, naming_model=True):
            return reading.dispatch(check_members(reading.value))
        return reading.dispatch({"payload": reading.raw()})


class RawBody(Form):
    """A body of a type that the client takes."""

    def has(self, reading: Reading) -> bool:
        return reading.record is not None

    def read(self, reading: Reading) -> DispatchRequest:
        return reading.dispatch({"payload": reading.record})


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


ANY_BODY, RAW_BODY, OTHER_BODY = AnyBody(), RawBody(), OtherBody()
