"""Run a record through its client: validate it as the payload, call the client, translate its errors."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sm.client.base import Client
from sm.client.payloads import ANY_TYPE, Payload, keys_of, takes_base64
from sm.client.validation import validate
from sm.errors import (
    BadInput,
    ClientFailed,
    DeadlinePassed,
    FieldPath,
    ModelCrashed,
    OutOfMemory,
    TriremeError,
    UnsupportedType,
    WrongPayload,
    WrongTensor,
    write_path,
)
from sm.http.messages import JSON, JSON_LINES
from sm.invocation import PASSED, Invocation, span
from sm.metrics import stage
from sm.plugins.loading import describe_failure
from sm.router.answers import dumps
from sm.router.back_pressure import finishing
from sm.router.request_types import PAYLOAD, DispatchRequest, RawRecord

log = logging.getLogger(__name__)
#: Characters of a caller's name that an error repeats.
MAX_NAME_CHARACTERS = 40


def run_record(
    request: DispatchRequest, invocation: Invocation, number: int = 0, path: FieldPath = PAYLOAD
) -> object:
    """Run a record of a request and return its result. Raises :class:`TriremeError`.

    Args:
        request: The request.
        invocation: Its scope.
        number: Of the record.
        path: The record's place in the request, for errors.
    """
    client, payload = request.client, None
    if invocation.crashes:
        raise_crash(request, invocation, number)
    try:
        with stage(client.name, "decode"):
            payload = validate_payload(client, request, request.records[number], path)
        if client._marks.batches is None:
            result = client.inference(payload)
        else:
            (result,) = client._marks.batches.answer([payload], invocation)
            if isinstance(result, BaseException):
                raise result
        # A result that is too late reaches no caller, so it is not a success.
        if invocation.at <= time.monotonic():
            raise DeadlinePassed(PASSED)
        return result
    except BaseException as error:  # a client may call sys.exit(): its record alone fails
        note_crash(request, invocation, number, error)
        raise to_error(error, request, path, payload) from None


def note_crash(request: DispatchRequest, invocation: Invocation, number: int, error: BaseException) -> None:
    """Remember a record that crashed its model: its request may have to run again, the record may not."""
    if isinstance(error, ModelCrashed):
        invocation.crashes.append((request.client, request.records[number], error))


def raise_crash(request: DispatchRequest, invocation: Invocation, number: int) -> None:
    """Raise the error of a record that has crashed its model in this invocation."""
    for client, record, error in invocation.crashes:
        if client is request.client and record == request.records[number]:
            raise error


def stream(
    request: DispatchRequest, invocation: Invocation, confirm: Callable[[], None]
) -> Generator[object, None, None]:
    """Yield the parts of the answer to the single record. Raises :class:`TriremeError`.

    Args:
        request: The request.
        invocation: Its scope.
        confirm: Called before each part is sent.
    """
    client, payload, count = request.client, None, 0
    if request.many:
        raise WrongPayload("a stream answers one record, not a list of them", field=PAYLOAD)
    with span("stream") as streaming:
        try:
            with stage(client.name, "decode"):
                payload = validate_payload(client, request, request.records[0])
            parts = client.stream(payload)
            with finishing(parts):
                for answer_part in parts:
                    confirm()
                    count += 1
                    if count == 1:
                        streaming.notice("first part")
                    streaming.describe({"trireme.stream.parts": count})
                    yield answer_part
                    invocation.check()
        except GeneratorExit:
            raise
        except BaseException as error:  # a client may call sys.exit()
            raise to_error(error, request, PAYLOAD, payload) from None


def to_error(
    error: BaseException, request: DispatchRequest, path: FieldPath, payload: Payload | None
) -> TriremeError:
    """Translate an exception for the caller; the traceback of a client's own goes to the log."""
    client, known = request.client, {"request_id": request.request_id}
    if isinstance(error, BadInput | WrongPayload) and "field" in error.details:
        return _with_place(error, request, path)
    if isinstance(error, WrongTensor) and not (payload and payload.may_have_caused(error)):
        log.error("client %s failed: %s", client.name, error.explanation, exc_info=error, extra=known)
        return ClientFailed(f"the client of {client.name!r} failed: its model does not take what it gives")
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(f"{client.name} ran out of memory")
    log.error("client %s failed", client.name, exc_info=error, extra=known)
    return ClientFailed(f"the client of {client.name!r} failed ({_describe(client, error)})")


def _describe(client: Client, error: BaseException) -> str:
    """Describe an exception of a client for a caller: its class only, as the rest is for the log.

    While a client is being edited, the caller is its author, and gets file and line.
    """
    if client._marks.is_edited:
        files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        for file in reversed(files):
            if file.is_relative_to(client.folder):
                return f"{file}: {describe_failure(error, file).rstrip('.')}"
    return type(error).__name__


def _with_place(error: TriremeError, request: DispatchRequest, path: FieldPath) -> TriremeError:
    """Return the error with the field's place as the request's form has it.

    A client calls its record ``payload``, wherever the caller's form has it.
    """
    field = error.path
    if len(field) > 1 and field[0] == "payload" and path != PAYLOAD and isinstance(field[1], str):
        field = (*path, *field[1:])
    if request.call is not None and field:
        field = request.call.name(field)
    return error if field == error.path else error.at(field)


def validate_payload(
    client: Client, request: DispatchRequest, record: Any, path: FieldPath = PAYLOAD
) -> Payload:
    """Validate a record as the client's payload. Raises :class:`WrongPayload` with the wrong field's path."""
    members = _members(client, request, record, path)
    try:
        payload = validate(client.payload, members)
    except ValidationError as error:
        raise _to_wrong_payload(error, path, client.payload) from None
    payload.attach_request(request)
    if client._marks.batches is not None:
        payload.__dict__["_length"] = int(client.prepare(payload))
    return payload


def _members(client: Client, request: DispatchRequest, record: Any, path: FieldPath) -> Mapping[str, Any]:
    """Return what is validated as the payload. Raises :class:`WrongPayload` for keys and types of values."""
    kind = client.payload
    is_plain = type(record) is dict and not kind.takes_bodies and "parameters" not in record
    members: Mapping[str, Any] = record if is_plain else _payload_fields(client, record, path)
    for name, value in members.items():
        if (value is True or value is False) and name in number_names(kind):
            raise _not_a_number((*path, name))
    if request.parameters or request.attributes:
        read_options(request)
        if request.options:
            members = {**members, "parameters": request.options}
    return members


def read_options(request: DispatchRequest) -> None:
    """Validate the request's parameters, once. Raises :class:`WrongPayload`."""
    if request.options is None:
        request.options = _options(request.client.payload, request)


@lru_cache(maxsize=256)
def number_names(kind: type[BaseModel]) -> frozenset[str]:
    """Return the keys of a type's fields of numbers: pydantic would read true and false as 1 and 0."""
    return frozenset(
        key
        for name, info in kind.model_fields.items()
        if (kinds := {info.annotation, *get_args(info.annotation)}) & {int, float} and bool not in kinds
        for key in keys_of(name, info)
    )


def _not_a_number(path: FieldPath) -> WrongPayload:
    return WrongPayload("input should be a number, not true or false", field=path)


def _options(kind: type[Payload], request: DispatchRequest) -> Any:
    """Return the request's parameters as the payload's type has them, validated once for all records.

    Those of a type that is not a model are returned as they are.
    """
    parameters = _parameters(kind, request.parameters, request.attributes)
    options: Any = kind.model_fields["parameters"].annotation if parameters else None
    if not isinstance(options, type) or not issubclass(options, BaseModel):
        return parameters
    for name in number_names(options):
        if isinstance(parameters.get(name), bool):
            raise _not_a_number(("parameters", name))
    try:
        return validate(options, parameters)
    except ValidationError as error:
        raise _to_wrong_payload(error, PAYLOAD, kind, ("parameters",)) from None


def _payload_fields(client: Client, record: object, path: FieldPath) -> Mapping[str, Any]:
    """Return the values of the payload's fields in a record, by the names that the caller used.

    This needs the client's payload type, for each record; the classification knows the request only.
    """
    kind = client.payload
    if kind.takes_bodies:
        if isinstance(record, RawRecord):
            return {"body": record.body, "content_type": record.content_type}
        return {"body": dumps(record), "content_type": JSON, "dispatched": True}
    if isinstance(record, RawRecord):
        if not {record.content_type, ANY_TYPE} & {*kind.content_types}:
            takes = ", ".join((JSON, JSON_LINES, *kind.content_types))
            raise UnsupportedType(f"{client.name} takes {takes}, not {record.content_type[:100]!r}")
        return kind.read_raw(record.body, record.options)
    if isinstance(record, str) and kind.main_field:
        return {kind.main_field: record}
    if not isinstance(record, dict):
        raise WrongPayload(f"must be {_expected_record(kind)}", field=path)
    if "parameters" in record:
        raise WrongPayload("belongs beside payload, not in it", field=(*path, "parameters"))
    return record


def _expected_record(kind: type[Payload]) -> str:
    """Describe what a record of a dispatch request may be."""
    name = kind.main_field
    if name is None:
        return "an object"
    takes_text = kind.model_fields[name].annotation in (str, bytes)
    return f"an object or a string ({name})" if takes_text else f"an object with {name}"


def _parameters(
    kind: type[Payload], requested: Mapping[str, Any], attributes: Mapping[str, str]
) -> dict[str, Any]:
    """Merge the custom attributes that name a parameter of the client with the request's ``parameters``.

    The request's ``parameters`` win.
    """
    accepted = kind.parameter_names()
    if requested and not accepted:
        first = next(iter(requested))
        error = WrongPayload("this model takes no parameters", field=("parameters", first))
        error.log_reason = "parameters: this model takes no parameters"
        raise error
    return {**{name: value for name, value in attributes.items() if name in accepted}, **requested}


def _to_wrong_payload(
    error: ValidationError, path: FieldPath, kind: type[Payload], within: tuple[str, ...] = ()
) -> WrongPayload:
    """Describe the first wrong field. The log's reason leaves out keys that the payload does not declare.

    Args:
        error: Of :func:`~sm.client.validation.validate`, which makes few.
        path: The record's place in the request.
        kind: The payload.
        within: Where in it the validated value is.
    """
    errors: list[Any] = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    location = (*within, *first["loc"])
    explanation = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    name = location[0] if len(location) == 1 else None
    if isinstance(name, str):
        field, *aliases = kind.names_of(kind.field_of(name))
        if first["type"] == "missing" and aliases:
            alias_paths = " or ".join(write_path((*path, alias)) for alias in aliases)
            explanation += f" ({alias_paths} means the same)"
        elif first["type"] == "extra_forbidden" and name in aliases:
            explanation = f"means the same as {write_path((*path, field))}; send one of the two"
        elif first["type"] == "extra_forbidden":
            explanation = _no_such("field", set(kind.model_fields) - {"parameters"})
        elif first["type"] == "bytes_type" and takes_base64(kind, name):
            explanation = "input should be a string in base64"
    elif first["type"] == "extra_forbidden" and location[0] == "parameters" and len(location) == 2:
        explanation = _no_such("parameter", kind.parameter_names())
    misspelled = _name_unknown_field(errors) if first["type"] == "missing" and not within else ""
    payload_error = WrongPayload(f"{explanation}{misspelled}", field=_place(location, path))
    loggable = [
        part if isinstance(part, int) or part == "parameters" or part in _declared_names(kind) else "…"
        for part in location
    ]
    payload_error.log_reason = f"{write_path(_place(loggable, path))}: {explanation}"
    return payload_error


@lru_cache(maxsize=256)
def _declared_names(kind: type[Payload]) -> frozenset[str]:
    """Return the keys of a payload and of its parameters."""
    return kind.parameter_names().union(*map(kind.names_of, kind.model_fields))


def _name_unknown_field(errors: Sequence[Any]) -> str:
    """Name the first field that the payload does not have, which may be the missing one, misspelled."""
    for fault in errors:
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            return f"; there is no field {str(fault['loc'][0])[:MAX_NAME_CHARACTERS]!r}"
    return ""


def _no_such(what: str, names: Set[str]) -> str:
    """Explain that a name is unknown, and list those that are known."""
    return f"no such {what}; there {'is' if len(names) == 1 else 'are'} {', '.join(sorted(names)) or 'none'}"


def _place(location: Sequence[str | int], path: FieldPath) -> FieldPath:
    """Return a field's place: ``("parameters", "top")`` is beside the payload, everything else within it."""
    return tuple(location) if location and location[0] == "parameters" else (*path, *location)
