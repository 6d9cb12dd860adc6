"""The forms of a JSON body and their members; a body is parsed at most once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from sm.client.base import Client
from sm.client.decode_budget import BYTES_PER_MARK, MAX_UNCOUNTED_MARKS
from sm.client.hugging_face import Tabular, pipeline_of
from sm.client.payloads import MIN_BASE64_BYTES, parse_body
from sm.errors import BadInput, WrongPayload
from sm.http.messages import CSV, JSON, check_not_empty, load_json, not_json
from sm.router.forms.tables import read_table
from sm.router.request_types import Message, PipelineCall

#: The beginning of a JSON object.
OBJECT = re.compile(rb"\s*\{")
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


def read_members(body: bytes) -> Mapping[str, Any]:
    """Parse a dispatch request and return its members."""
    try:
        value = load_json(body) if len(body) < MIN_BASE64_BYTES else parse_body(body)
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
        pipeline = pipeline_of(client)
        members = PIPELINE_MEMBERS | pipeline.members
        if unknown := value.keys() - members:
            name = min(unknown)
            raise WrongPayload(
                f"{name}: no such member beside inputs; there are {', '.join(sorted(members))}", field=name
            )
        check_types(value)
        beside = {name: value[name] for name in pipeline.members if name in value}
        inputs, parameters = value["inputs"], {**beside, **(value.get("parameters") or {})}
        if inputs is None or inputs == []:
            raise WrongPayload("inputs: is empty", field="inputs")
        call = PipelineCall(inputs, parameters, pipeline)
        records, own_parameters = call.pipeline.read(inputs, parameters)
        address = {name: value[name] for name in ADDRESS_MEMBERS if value.get(name) is not None}
        return call, {**address, "payload": records, "parameters": own_parameters}

    def table_call(self, client: Client) -> tuple[PipelineCall, Mapping[str, Any]] | None:
        """Return rows in another system's form, and the members that they mean; None for another body.

        Raises:
            WrongPayload: A member is of the wrong type; the error names it.
        """
        if not isinstance(pipeline_of(client), Tabular) or (value := self._parse()) is None:
            return None
        found = None if self.has_inputs() and self.is_v2() else read_table(value, client)
        if found is None:
            return None
        form, place, rows = found
        members = value if isinstance(value, dict) else {}
        check_types(members)
        address = {name: members[name] for name in ADDRESS_MEMBERS if members.get(name) is not None}
        return PipelineCall(None, {}, form, place), {**address, "payload": {"rows": rows}}

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


def _type_name(value: object) -> str:
    """Return what JSON calls the type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


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
