"""Find out whether a client changes its input."""

from __future__ import annotations

import copy
import json
from functools import cached_property
from typing import Any

import numpy as np

from sm.client.base import Client
from sm.client.results import Picture
from sm.commands.golden import differences
from sm.errors import TriremeError
from sm.router.answers import dumps
from sm.router.classify import read_dispatch
from sm.router.dispatch import validate_payload
from trireme_tools.check.calls import Request


def find_change(client: Client, request: Request) -> str | None:
    """Describe the part of the payload that ``inference`` changes; None if there is none."""
    invocation = read_dispatch(request.body(client.name), "check")
    payload = validate_payload(client, invocation, invocation.records[0])
    before = copy.deepcopy(_parts(payload))
    first_result = _as_caller_reads(client.inference(payload))
    for name, value in _parts(payload).items():
        if not _same(value, before[name]):
            return f"mutation of its input: payload.{name} is another after the call; work on a copy"
    if any(differences(_as_caller_reads(client.inference(payload)), first_result)):
        return "state of an earlier call: the same payload gives another answer the second time"
    return None


def _as_caller_reads(result: object) -> Any:
    """Return a result as the caller reads it."""
    return json.loads(dumps(result.as_json() if isinstance(result, Picture) else result))


def _parts(payload: Any) -> dict[str, Any]:
    """Return the payload's fields and cached properties, such as a picture's pixels."""
    cached_properties = [
        name
        for kind in type(payload).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, cached_property)
    ]
    parts = {name: getattr(payload, name) for name in type(payload).model_fields}
    for name in cached_properties:
        try:
            parts[name] = getattr(payload, name)
        except TriremeError:
            continue
    return parts


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    return bool(first == second)
