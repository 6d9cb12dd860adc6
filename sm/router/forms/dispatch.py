"""The box's own form, ``{"modelname", "version", "payload", "parameters"}``; a line may be the payload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from sm.client.base import Client
from sm.errors import BadInput, WrongPayload
from sm.http.messages import JSON, load_json, not_json
from sm.router.forms.form import MEMBERS, Form, Reading, has_payload
from sm.router.request_types import PAYLOAD, DispatchRequest, Message

#: The members that the query may have too. All other names in the query are parameters.
ADDRESS_MEMBERS = ("modelname", "version")
#: The types of optional members. Null is the same as leaving the member out.
MEMBER_TYPES: Mapping[str, Any] = {
    "modelname": str,
    "version": (str, int),
    "parameters": dict,
}
#: Parameters of a request. Each is copied several times before the client's type says which it has.
MAX_PARAMETERS = 1000
#: A body that begins like this is a dispatch request, and is not searched: usually a picture follows.
STARTS_AS_DISPATCH = re.compile(rb'\s*\{\s*("modelname"\s*:\s*"[^"\\]*"\s*,\s*)?"payload"\s*:')


class Dispatch(Form):
    """A dispatch request: nearly all requests, which :meth:`read_first` finds before any row is asked."""

    def read_first(self, message: Message, client: Client | None) -> Mapping[str, Any] | None:
        """Return the members of a body that is certainly a dispatch request; None if rows have to be asked.

        Raises:
            BadInput, WrongPayload: See :func:`check_members`.
        """
        headers, body = message.headers, message.body
        if (
            headers.get("content-type", JSON) != JSON
            or not STARTS_AS_DISPATCH.match(body)
            or (client is not None and client.payload.takes_bodies)
            or "content-encoding" in headers
        ):
            return None
        try:
            value = load_json(body)
        except orjson.JSONDecodeError as error:
            raise not_json(error) from None
        return check_members(value)

    def has(self, reading: Reading) -> bool:
        return reading.is_json

    def read(self, reading: Reading) -> DispatchRequest:
        value = reading.json()
        if reading.is_line and reading.is_bare(value):
            value = {"payload": value}
        return reading.dispatch(check_members(value))


def is_dispatch(reading: Reading, naming_model: bool = False) -> bool:
    """True if a body is certainly a dispatch request; with ``naming_model``, one that names its model."""
    body = reading.body
    if b'"payload"' not in body or (naming_model and b'"modelname"' not in body):
        return False
    value = reading.value
    return has_payload(value) and (not naming_model or "modelname" in value)


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
        raise WrongPayload(f"no such member; there are {', '.join(sorted(MEMBERS))}", field=(name,))
    for name, value in body.items():
        types = MEMBER_TYPES.get(name)
        if types and value is not None and (value is True or value is False or not isinstance(value, types)):
            raise WrongPayload(f"may not be {_type_name(value)}", field=(name,))
    if len(body.get("parameters") or ()) > MAX_PARAMETERS:
        raise WrongPayload(f"has more than {MAX_PARAMETERS:,} members", field=("parameters",))
    if "payload" not in body:
        raise WrongPayload("is missing", field=PAYLOAD)
    if body["payload"] == []:
        raise WrongPayload("the list is empty", field=PAYLOAD)
    return body


def check_types(members: Mapping[str, Any]) -> None:
    """Raise :class:`WrongPayload` if a member that another form has too is of the wrong type."""
    shared = {name: value for name, value in members.items() if name in MEMBER_TYPES}
    check_members({**shared, "payload": None})


def _type_name(value: object) -> str:
    """Return what JSON calls the type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


DISPATCH = Dispatch()
