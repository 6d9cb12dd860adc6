"""Payloads that a caller might send by mistake, from a client's schema and its sample; by Hypothesis."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pybase64

from sm.client.base import Client
from sm.errors import StartError
from sm.tools.check.calls import Request

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def tell(client: Client, sample: Any, count: int, ask: Callable[[Request], bool]) -> int:
    """Call ``ask`` with up to ``count`` mutated payloads, the same at each run, until it says False.

    The plain mistakes come first: each field missing, null and of another type. How many were asked.
    """
    try:
        from hypothesis import HealthCheck, Phase, given, settings
    except ImportError:
        raise StartError(
            "check-client makes its payloads with Hypothesis, which is not here: pip install hypothesis."
        ) from None
    asked = 0

    def once(request: Request) -> bool:
        nonlocal asked
        asked += 1
        return ask(request)

    schema = client.payload.model_json_schema()
    if not all(once(request) for request in islice(plain(schema, sample), count)):
        return asked
    going = True

    @settings(
        max_examples=max(1, count - asked),
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(schema, sample))
    def generated(request: Request) -> None:
        nonlocal going
        if going and asked < count:
            going = once(request)

    generated()
    return asked


def plain(schema: Mapping[str, Any], sample: Any) -> Iterator[Request]:
    """Each field, of the payload and of its parameters, once with each mistake; then the payload itself."""
    wrong: tuple[Any, ...] = (None, "", 0, -1, True, [], {}, "x", 1e308)
    for place, members, holder in _objects(schema, sample):
        for name in members:
            yield _request(sample, place, {**holder, name: None})
            yield _request(sample, place, {key: value for key, value in holder.items() if key != name})
        for name in members:
            for value in wrong[1:]:
                yield _request(sample, place, {**holder, name: value})
        yield _request(sample, place, {**holder, "no_such_field": 1})
    for value in (*wrong, [None], [sample, sample]):
        yield Request(value)


def requests(schema: Mapping[str, Any], sample: Any) -> SearchStrategy[Request]:
    """A request with one field changed: to something of its type, or to any JSON."""
    from hypothesis import strategies as st

    kinds = []
    for place, members, holder in _objects(schema, sample):
        for name, member in members.items():
            value = st.one_of(typed(_resolved(schema, member)), anything())
            if holder.get(name) is not None:
                value = st.one_of(near(holder[name]), value)
            kinds.append(st.builds(_changed, st.just((sample, place, holder, name)), value))
    return st.one_of(*kinds) if kinds else anything().map(Request)


def variants(sample: Any, count: int) -> Iterator[Request]:
    """The sample and requests much like it, which differ: for answers that may not be mixed up."""
    yield Request(sample)
    fields = sorted(sample) if isinstance(sample, dict) else []
    for turn in range(count - 1):
        changed = copy.deepcopy(sample)
        for name in fields:
            changed[name] = _nudged(changed[name], turn + 1)
        if changed != sample:
            yield Request(changed)


def typed(schema: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Values of a JSON schema's type, on its bounds and a little beyond."""
    from hypothesis import strategies as st

    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    edges = [value + step for value in (low, high) if value is not None for step in (-1, 0, 1)]
    match schema.get("type"):
        case "integer":
            return st.one_of(*([st.sampled_from(edges)] if edges else []), st.integers(-(2**63), 2**63 - 1))
        case "number":
            numbers = st.floats(allow_nan=False, allow_infinity=False)
            return st.one_of(*([st.sampled_from(edges)] if edges else []), numbers)
        case "boolean":
            return st.booleans()
        case "string":
            return st.one_of(st.text(_letters(), max_size=200), st.binary(max_size=60).map(_base64))
        case "array":
            return st.lists(anything(), max_size=8)
    return anything()


def anything() -> SearchStrategy[Any]:
    """Any JSON of a modest size."""
    from hypothesis import strategies as st

    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(_letters(), max_size=20)
    )
    return st.recursive(
        leaves,
        lambda some: (
            st.lists(some, max_size=4) | st.dictionaries(st.text(_letters(), max_size=8), some, max_size=3)
        ),
        max_leaves=8,
    )


def near(value: Any) -> SearchStrategy[Any]:
    """The value cut short, repeated, turned round: what a broken caller makes of it."""
    from hypothesis import strategies as st

    if isinstance(value, str | list) and value:
        cut = st.integers(0, len(value) - 1)
        return st.one_of(
            cut.map(lambda at: value[:at]),
            cut.map(lambda at: value[at:]),
            cut.map(lambda at: _spoiled(value, at)),
            st.integers(1, 5).map(lambda turn: _nudged(value, turn)),
        )
    return st.integers(1, 5).map(lambda turn: _nudged(value, turn))


def _letters() -> SearchStrategy[str]:
    """No halves of surrogate pairs: JSON cannot carry them."""
    from hypothesis import strategies as st

    return st.characters(codec="utf-8")


def _spoiled(value: str | list[Any], at: int) -> str | list[Any]:
    """One character, or one item, is not what it was."""
    if isinstance(value, str):
        return f"{value[:at]}?{value[at + 1 :]}"
    return [*value[:at], "?", *value[at + 1 :]]


def _nudged(value: Any, turn: int) -> Any:
    """A value of the same kind that differs with ``turn``; unchanged if there is none."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value + turn
    if isinstance(value, list):
        return [_nudged(item, turn) for item in value]
    if isinstance(value, dict):
        return {name: _nudged(item, turn) for name, item in value.items()}
    picture = _picture(value)
    if picture is None:
        return f"{value} {turn}"
    return _base64(cv2.imencode(".png", np.roll(picture, turn * 7, axis=1)[:: (-1) ** turn])[1].tobytes())


def _picture(text: str) -> Any:
    """The pixels that a base64 text holds; None if it is no picture."""
    if len(text) < 64:
        return None
    try:
        content = pybase64.b64decode(text.partition("base64,")[2] or text, validate=True)
        return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except (ValueError, cv2.error):
        return None


def _base64(content: bytes) -> str:
    return pybase64.b64encode(content).decode()


def _objects(
    schema: Mapping[str, Any], sample: Any
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """The payload's own fields, then those of its parameters: where, their schemas, what the sample has."""
    members = dict(schema.get("properties", {}))
    parameters = members.pop("parameters", None)
    held = sample if isinstance(sample, dict) else {}
    yield "payload", members, held
    if parameters is not None:
        yield "parameters", _resolved(schema, parameters).get("properties", {}), {}


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """``part`` with its reference followed; of several types the first that is not null."""
    for choice in part.get("anyOf", part.get("allOf", ())):
        if choice.get("type") != "null":
            return _resolved(schema, choice)
    reference = part.get("$ref", "")
    found: Mapping[str, Any] = schema.get("$defs", {}).get(reference.rpartition("/")[2], part)
    return found


def _request(sample: Any, place: str, holder: Mapping[str, Any]) -> Request:
    return Request(dict(holder)) if place == "payload" else Request(sample, holder)


def _changed(known: tuple[Any, str, Mapping[str, Any], str], value: Any) -> Request:
    sample, place, holder, name = known
    return _request(sample, place, {**holder, name: value})


def shown(request: Request) -> str:
    """A request in a line, long texts cut."""
    parts = {"payload": request.payload}
    if request.parameters is not None:
        parts = {"parameters": request.parameters}
    text = json.dumps(_cut(parts))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:37]}..."
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value[:5]]
    return value
