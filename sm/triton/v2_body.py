"""Check the tensors of a v2 request in JSON, because Triton casts a number that does not fit its datatype.

It keeps the low bits of an integer, and makes infinity of a large number. See the FIXME in
``ReadDataFromJsonHelper`` of https://github.com/triton-inference-server/server (src/http_server.cc).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from sm.errors import BadInput
from sm.http.messages import outside_texts


class Datatype(NamedTuple):
    """The values that JSON may have for a datatype."""

    kinds: frozenset[type]
    words: str
    least: float = -math.inf
    most: float = math.inf


#: Tensors of a request, and dimensions of a tensor, that are inspected. No model has as many.
MAX_TENSORS, MAX_DIMENSIONS = 10_000, 100
INTEGER, NUMBER = frozenset({int}), frozenset({int, float})
#: The largest numbers of each float type (IEEE 754, and Google's bfloat16).
FLOATS = {"FP16": 65504.0, "BF16": 3.3895313892515355e38, "FP32": 3.4028234663852886e38, "FP64": math.inf}
DATATYPES: Mapping[str, Datatype] = {
    "BOOL": Datatype(frozenset({bool}), "true or false"),
    "BYTES": Datatype(frozenset({str}), "a string"),
    **{name: Datatype(NUMBER, "a number", -most, most) for name, most in FLOATS.items()},
    **{f"UINT{bits}": Datatype(INTEGER, "an integer", 0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{
        f"INT{bits}": Datatype(INTEGER, "an integer", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for bits in (8, 16, 32, 64)
    },
}

#: The key of a request for classes, or what could hide it: no writer of JSON escapes a letter.
SIGN_OF_CLASSES = re.compile(rb'"classification"\s*:|\\u00[67]')


def check_tensors(request: Any) -> None:
    """Check every input that has its values in the JSON.

    Triton itself reports what is no tensor at all, and a datatype that it does not know.

    Raises:
        BadInput: A value does not fit the datatype, or the values do not fit the shape; ``field`` says where.
    """
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list):
        return
    if len(inputs) > MAX_TENSORS:
        raise BadInput(f"inputs: a request has at most {MAX_TENSORS:,} tensors", field="inputs")
    for number, tensor in enumerate(inputs):
        if isinstance(tensor, dict) and "data" in tensor:
            name = tensor.get("datatype")
            datatype = DATATYPES.get(name) if isinstance(name, str) else None
            if datatype is not None:
                _check_data(tensor, f"inputs[{number}].data", datatype)


def check_outputs(request: Any, every: frozenset[str]) -> None:
    """Raise :class:`BadInput` for a choice of outputs that Triton's response cache may not have."""
    try:
        asked = {output["name"] for output in request.get("outputs", ())} if len(every) > 1 else set()
    except (TypeError, KeyError, AttributeError):
        return  # Triton says what is wrong with it
    if asked and asked < every:
        names = ", ".join(sorted(every))
        raise BadInput(f"outputs: a cached answer has all: ask for {names}, or for none", field="outputs")


def asked_classes(request: Any, text: bytes) -> list[object]:
    """Return the names of the outputs of which a request asks for classes.

    Args:
        request: The parsed JSON.
        text: The JSON. Of a key that it has twice Triton may take another value than the parser.

    Raises:
        BadInput: Triton 2.51 would rely on numbers that are not there, or the JSON may hide that.
    """
    if not SIGN_OF_CLASSES.search(text):
        return []
    inputs, outputs = (_part(request, name, list) for name in ("inputs", "outputs"))
    if len(inputs) + len(outputs) > MAX_TENSORS:
        raise BadInput(f"a request has at most {MAX_TENSORS} inputs and outputs")
    parts = [part for part in (request, *inputs, *outputs) if isinstance(part, dict)]
    members = sum(len(part) + len(_part(part, "parameters", dict)) for part in parts)
    if outside_texts(text, b":").count(b":") != members:
        raise BadInput("a request for classes has a key twice, or an object where the protocol has none")
    asked = [each.get("name") for each in outputs if "classification" in _part(each, "parameters", dict)]
    if asked and any(0 in _part(tensor, "shape", list) for tensor in inputs):
        raise BadInput("inputs: one has no values, and so its output no classes", field="inputs")
    return asked


def _part(value: Any, name: str, kind: type[Any]) -> Any:
    """Return a member of an object if it is of a kind; else an empty one."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, kind) else kind()


def _check_data(tensor: Mapping[str, Any], field: str, datatype: Datatype) -> None:
    shape, data, name = tensor.get("shape"), tensor["data"], tensor["datatype"]
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    count = math.prod(shape) if isinstance(shape, list) and is_shape else None
    if count and isinstance(data, list) and len(data) > count:  # before each of them is looked at
        raise BadInput(f"{field}: has over {count} values for the shape {shape}"[:200], field=field)
    values = _flatten(data, field)
    kinds = frozenset(map(type, values))
    if not kinds <= datatype.kinds:
        wrong = next(index for index, value in enumerate(values) if type(value) not in datatype.kinds)
        raise BadInput(
            f"{field}: value {wrong} is not {datatype.words}, as {name} needs it", field=field, index=wrong
        )
    if (
        datatype.most < math.inf
        and values
        and not datatype.least <= min(values) <= max(values) <= datatype.most
    ):
        wrong = next(
            index for index, value in enumerate(values) if not datatype.least <= value <= datatype.most
        )
        raise BadInput(f"{field}: value {wrong} is out of the range of {name}", field=field, index=wrong)
    if count is not None and count != len(values):
        raise BadInput(f"{field}: has {len(values)} values for the shape {shape}"[:200], field=field)


def _flatten(data: Any, field: str) -> list[Any]:
    """Return the values of nested lists, row by row. Raises :class:`BadInput` if they are not regular."""
    if not isinstance(data, list):
        raise BadInput(f"{field}: must be a list", field=field)
    values: list[Any] = data
    for _ in range(MAX_DIMENSIONS):
        if not values or type(values[0]) is not list:
            return values
        if set(map(type, values)) != {list} or len(set(map(len, values))) > 1:
            raise BadInput(f"{field}: its lists differ in length or depth", field=field)
        values = list(chain.from_iterable(values))
    raise BadInput(f"{field}: its lists are nested more than {MAX_DIMENSIONS} deep", field=field)
