"""The id of a sequence, as the models take it that keep a state for it.

Triton 2.51 gives a model with a numeric CORRID the length and first letters of a text as its number: two
callers' ids may be one, and they share a state. A number too large for the datatype loses its first bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sm.errors import BadInput
from sm.repository.models import Model

NAME = "sequence_id"
#: The largest id by the datatype of a CORRID.
LARGEST = {
    "TYPE_INT32": 2**31 - 1,
    "TYPE_UINT32": 2**32 - 1,
    "TYPE_INT64": 2**63 - 1,
    "TYPE_UINT64": 2**64 - 1,
}
TEXT, ANY = "TYPE_STRING", ""


def id_types(models: Iterable[Model]) -> frozenset[str]:
    """Return the datatypes in which models take the id; :data:`ANY` for one that takes none."""
    found: set[str] = set()
    for model in models:
        if model.config is None or not model.has_state:
            continue
        controls = [part for entry in model.config.sequence_batching.control_input for part in entry.control]
        ids = [part for part in controls if part.Kind.Name(part.kind) == "CONTROL_SEQUENCE_CORRID"]
        found |= {_datatype(part) for part in ids} or {ANY}
    return frozenset(found)


def _datatype(control: Any) -> str:
    kinds = control.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return str(kinds[control.data_type].name)


def check_sequence_id(text: bytes, types: frozenset[str]) -> None:
    """Check the id in a request's JSON for models that take it in ``types``.

    Raises:
        BadInput: It is no id, or not one of such a type; or a key is there twice.
    """
    try:
        body = json.loads(text or b"{}", object_pairs_hook=_read_object)
    except (ValueError, RecursionError):
        return  # Triton says what is wrong with it
    members = body if isinstance(body, dict) else {}
    # The generate extension has a request's parameters beside its inputs.
    parameters = members.get("parameters")
    for place in (members, parameters if isinstance(parameters, dict) else {}):
        if NAME in place:
            _check(place[NAME], types)


def _check(value: Any, types: frozenset[str]) -> None:
    is_number = type(value) is int
    largest = min((LARGEST[name] for name in types if name in LARGEST), default=LARGEST["TYPE_UINT64"])
    if not is_number and not isinstance(value, str):
        raise BadInput(f"{NAME}: must be a whole number or a text", field=NAME)
    if is_number and not 0 < value <= largest:
        raise BadInput(f"{NAME}: must be a number from 1 to {largest}", field=NAME)
    if not is_number and types & LARGEST.keys():
        raise BadInput(f"{NAME}: the model takes a number from 1 to {largest}, not a text", field=NAME)
    if is_number and TEXT in types:
        raise BadInput(f"{NAME}: the model takes a text, not a number", field=NAME)
    if value == "":
        raise BadInput(f"{NAME}: must not be empty", field=NAME)


def _read_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(members)
    if len(read) < len(members):
        raise BadInput("the JSON has a key twice in one object")
    return read
