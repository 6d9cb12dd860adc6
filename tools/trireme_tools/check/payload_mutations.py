"""Generate payloads that a caller might send by mistake, from a client's schema and sample, with
Hypothesis.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pybase64

from sm.client.base import Client
from trireme_tools.check.calls import CheckRequest
from trireme_tools.check.check_report import CheckSkipped

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def try_mutations(client: Client, sample: Any, count: int, ask: Callable[[CheckRequest], bool]) -> int:
    """Call ``ask`` with up to ``count`` mutated payloads, the same in each run, until it returns False.

    Simple mistakes come first: each field missing, null and of another type. Returns how many were sent.

    Raises:
        CheckSkipped: Hypothesis is not installed.
    """
    try:
        from hypothesis import HealthCheck, Phase, given, settings
    except ImportError:
        raise CheckSkipped(
            "not checked: Hypothesis, which makes the payloads, is not installed: pip install hypothesis"
        ) from None
    sent_count, is_running = 0, True

    def send(request: CheckRequest) -> None:
        nonlocal sent_count, is_running
        if is_running and sent_count < count:
            sent_count += 1
            is_running = ask(request)

    schema = client.payload.model_json_schema()
    for request in islice(simple_mistakes(schema, sample), count):
        send(request)

    @settings(
        max_examples=max(1, count - sent_count),
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated_requests(schema, sample))
    def generated(request: CheckRequest) -> None:
        send(request)

    if is_running:
        generated()
    return sent_count


def simple_mistakes(schema: Mapping[str, Any], sample: Any) -> Iterator[CheckRequest]:
    """Yield each field of payload and parameters with each simple mistake; then the payload itself."""
    wrong_values: tuple[Any, ...] = (None, "", 0, -1, True, [], {}, "x", 1e308)
    for place, members, holder in _objects(schema, sample):
        for name in members:
            yield _request(sample, place, {**holder, name: None})
            yield _request(sample, place, {key: value for key, value in holder.items() if key != name})
        for name in members:
            for value in wrong_values[1:]:
                yield _request(sample, place, {**holder, name: value})
        yield _request(sample, place, {**holder, "no_such_field": 1})
    for value in (*wrong_values, [None], [sample, sample]):
        yield CheckRequest(value)


def mutated_requests(schema: Mapping[str, Any], sample: Any) -> SearchStrategy[CheckRequest]:
    """Generate requests with one changed field: another value of its type, or any JSON."""
    from hypothesis import strategies as st

    kinds = []
    for place, members, holder in _objects(schema, sample):
        for name, member in members.items():
            value = st.one_of(values_of_type(_resolve(schema, member)), any_json())
            if holder.get(name) is not None:
                value = st.one_of(similar_values(holder[name]), value)
            kinds.append(value.map(partial(_replace_field, sample, place, holder, name)))
    return st.one_of(*kinds) if kinds else any_json().map(CheckRequest)


def variants(sample: Any, count: int) -> Iterator[CheckRequest]:
    """Yield the sample and different requests like it, whose answers must not be mixed up."""
    yield CheckRequest(sample)
    fields = sorted(sample) if isinstance(sample, dict) else []
    for turn in range(count - 1):
        changed = copy.deepcopy(sample)
        for name in fields:
            changed[name] = _vary(changed[name], turn + 1)
        if changed != sample:
            yield CheckRequest(changed)


def values_of_type(schema: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Generate values of a JSON schema's type, at its bounds and slightly beyond."""
    from hypothesis import strategies as st

    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    bounds = [schema[name] for name in ("minimum", "maximum") if name in schema]
    edges = [value + step for value in bounds for step in (-1, 0, 1)]
    kinds = {
        "integer": st.integers(-(2**63), 2**63 - 1),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "string": st.text(_letters(), max_size=200) | st.binary(max_size=60).map(_encode_base64),
        "array": st.lists(any_json(), max_size=8),
    }
    values = kinds.get(str(schema.get("type")), any_json())
    return st.sampled_from(edges) | values if edges else values


def any_json() -> SearchStrategy[Any]:
    """Generate JSON of moderate size."""
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


def similar_values(value: Any) -> SearchStrategy[Any]:
    """Generate variants of the value: cut short, repeated, reversed."""
    from hypothesis import strategies as st

    varied = st.integers(1, 5).map(lambda turn: _vary(value, turn))
    if isinstance(value, str | list) and value:
        cut = st.integers(0, len(value) - 1)
        other: Any = "?" if isinstance(value, str) else ["?"]
        replaced = cut.map(lambda at: value[:at] + other + value[at + 1 :])
        return st.one_of(cut.map(lambda at: value[:at]), cut.map(lambda at: value[at:]), replaced, varied)
    return varied


def _letters() -> SearchStrategy[str]:
    """Generate text without surrogates, which JSON cannot carry."""
    from hypothesis import strategies as st

    return st.characters(codec="utf-8")


def _vary(value: Any, turn: int) -> Any:
    """Return a value of the same kind that differs with ``turn``; the same value if there is none."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value + turn
    if isinstance(value, list):
        return [_vary(item, turn) for item in value]
    if isinstance(value, dict):
        return {name: _vary(item, turn) for name, item in value.items()}
    picture = _decode_picture(value)
    if picture is None:
        return f"{value} {turn}"
    return _encode_base64(
        cv2.imencode(".png", np.roll(picture, turn * 7, axis=1)[:: (-1) ** turn])[1].tobytes()
    )


def _decode_picture(text: str) -> Any:
    """Return the pixels in a base64 text; None if it is not a picture."""
    if len(text) < 64:
        return None
    try:
        content = pybase64.b64decode(text.partition("base64,")[2] or text, validate=True)
        return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except (ValueError, cv2.error):
        return None


def _encode_base64(content: bytes) -> str:
    return pybase64.b64encode(content).decode()


def _objects(
    schema: Mapping[str, Any], sample: Any
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the payload and its parameters: path, schemas, and the sample's value."""
    members = dict(schema.get("properties", {}))
    parameters = members.pop("parameters", None)
    record = sample if isinstance(sample, dict) else {}
    yield "payload", members, record
    if parameters is not None:
        yield "parameters", _resolve(schema, parameters).get("properties", {}), {}


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a reference; of several types, return the first that is not null."""
    for choice in part.get("anyOf", part.get("allOf", ())):
        if choice.get("type") != "null":
            return _resolve(schema, choice)
    reference = part.get("$ref", "")
    target: Mapping[str, Any] = schema.get("$defs", {}).get(reference.rpartition("/")[2], part)
    return target


def _request(sample: Any, place: str, holder: Mapping[str, Any]) -> CheckRequest:
    return CheckRequest(dict(holder)) if place == "payload" else CheckRequest(sample, holder)


def _replace_field(sample: Any, place: str, holder: Mapping[str, Any], name: str, value: Any) -> CheckRequest:
    return _request(sample, place, {**holder, name: value})


def format_request(request: CheckRequest) -> str:
    """Format a request in one line, with long texts cut."""
    name = "payload" if request.parameters is None else "parameters"
    text = json.dumps(_shorten({name: getattr(request, name)}))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:37]}..."
    if isinstance(value, Mapping):
        return {name: _shorten(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item) for item in value[:5]]
    return value
