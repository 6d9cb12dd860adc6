"""The id of a sequence, as the models take it that keep a state for it.

Triton 2.51 gives a model with a numeric CORRID the length and first letters of a text as its number: two
callers' ids may be one, and they share a state. A number too large for the datatype loses its first bits.
"""

from __future__ import annotations

import re
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
#: The id's key in JSON, and an escape for a letter of it or of ``parameters``, which no writer of JSON has.
KEY = re.compile(rb'"sequence_id"\s*:')
ESCAPED = re.compile(rb"\\u00(?:5[fF]|6[134569dDeE]|7[0-5])")


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


def check_sequence_id(request: Any, text: bytes, types: frozenset[str]) -> None:
    """Check the id in a request for models that take it in ``types``.

    Args:
        request: The parsed JSON.
        text: The JSON. Of a key that it has twice Triton takes another value than the parser.
        types: The datatypes.

    Raises:
        BadInput: It is no id, or not one of such a type; or its key is there twice, or written with escapes.
    """
    # The generate extension has a request's parameters beside its inputs.
    places = [request, request.get("parameters")] if isinstance(request, dict) else []
    ids = [place[NAME] for place in places if isinstance(place, dict) and NAME in place]
    if len(KEY.findall(text)) != len(ids) or ESCAPED.search(text.replace(b"\\\\", b"")):
        raise BadInput(f"{NAME}: its key may be in the JSON once, without escapes", field=NAME)
    for value in ids:
        _check(value, types)


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
