"""A body beyond the bounds is refused, no value of a v2 request in JSON is cast; any other is passed on unchanged.

The bounds keep away what ends some Triton. Each case is one step beyond its bound and no such body: Triton would
answer it with an error, or serve it.
"""

from __future__ import annotations

import functools
import gzip
import json
import time
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest

from sm.errors import BadInput, TooLarge, UnsupportedType
from sm.http.messages import LARGE_JSON_BYTES
from sm.triton.http_proxy import (
    DEPTH_CHUNK,
    MAX_DEPTH,
    MAX_DIGITS,
    check_depth,
    check_json,
    has_more_elements,
)
from sm.triton.v2_body import DATATYPES, MAX_DIMENSIONS, MAX_TENSORS, asked_classes

MAX_BODY_BYTES = 20_000
#: Without a time, so that the bytes are always the same.
gzipped = functools.partial(gzip.compress, mtime=0)


def v2_body(shape: object, outputs: object = None, **fields: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, **fields}
    return json.dumps({"inputs": [tensor], **({"outputs": outputs} if outputs else {})}).encode()


SAFE_BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "empty tensor": (v2_body([0, 99], data=[]), {}),
    "scalar": (v2_body([], data=[]), {}),
    "invalid shape": (v2_body(["a", None], data=[1]), {}),
    "not numbers": (v2_body([1], data=[1]).replace(b"[1]", b"[1e9, -5, null, 1.5]", 1), {}),
    "empty": (b"", {}),
    "shape in a text": (b'{"text": "\\"shape\\": [99]"}', {}),
    "NaN": (v2_body([1], data=[float("nan")]), {}),
    "nested NaN": (json.dumps({"x": [[float("nan")]] * 2000}).encode(), {}),
    "brackets in a text": (json.dumps({"x": "[" * (MAX_DEPTH + 1)}).encode(), {}),
    "as deep as may be": (b'{"a":' * (MAX_DEPTH - 2) + b"[[]]" + b"}" * (MAX_DEPTH - 2), {}),
    "a text that is not closed": (b'"' + b'\\"[' * 5000, {}),
    "binary": (v2_body([50]) + bytes(200), {"inference-header-content-length": str(len(v2_body([50])))}),
    "only binary": (b'"shape":[99]', {"inference-header-content-length": "0"}),
    "gzip": (gzipped(v2_body([3], data=[1, 2, 3])), {"content-encoding": "gzip"}),
    "deflate": (zlib.compress(v2_body([3], data=[1, 2, 3])), {"content-encoding": "deflate"}),
    "empty and br": (b"", {"content-encoding": "br"}),
}


@pytest.mark.parametrize("name", SAFE_BODIES)
def test_a_body_that_is_safe_for_triton_is_accepted(name: str) -> None:
    body, headers = SAFE_BODIES[name]
    check_json(body, headers, MAX_BODY_BYTES)


def one_more(template: bytes) -> bytes:
    """Fill in, for N, one element more than the body has bytes."""
    count = len(template) + 10
    return template.replace(b"N", str(len(template.replace(b"N", str(count).encode())) + 1).encode())


LEVELS = MAX_DEPTH + 1
BEYOND = {
    "one element": one_more(v2_body([7], data=[1]).replace(b"[7]", b"[N]")),
    "a product": one_more(v2_body([7], data=[1]).replace(b"[7]", b"[1, N]")),
    "spaces": one_more(v2_body([7], data=[1]).replace(b": [7]", b" : [ N ]")),
    "an escaped key": one_more(v2_body([7], data=[1]).replace(b"shape", b"\\u0073h\\u0061pe").replace(b"[7]", b"[N]")),
    "one dimension": v2_body([1] * (MAX_DIMENSIONS + 1)),
    "one tensor": b'{"inputs":[' + b",".join([b'{"shape":[1]}'] * (MAX_TENSORS + 1)) + b"]}",
    "one level": b"[" * LEVELS + b"]" * LEVELS,
    "one level of objects": b'{"a":' * LEVELS + b"1" + b"}" * LEVELS,
    "one level after an escaped quote": b'{"a": "\\"", "b": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    "one level after a text": b'{"a": "' + b"]" * LEVELS + b'", "b": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_one_step_beyond_a_bound_is_a_400(name: str, encoding: str) -> None:
    content = gzipped(BEYOND[name]) if encoding else BEYOND[name]
    with pytest.raises(BadInput):
        check_json(content, {"content-encoding": encoding}, 2**21)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        (b"4", False),
        (b"5", True),
        (b"2, 2", False),
        (b"2, 3", True),
        (b"5, 0", False),
        (b"-5", False),  # not a shape: Triton says so
        (b"0" * MAX_DIGITS + b"1", True),
    ],
)
def test_a_shape_has_at_most_as_many_elements_as_there_are_bytes(shape: bytes, more: bool) -> None:
    assert has_more_elements(shape, 4) == more


def test_levels_are_counted_across_the_chunks_of_a_long_body() -> None:
    pairs = b"[]" * (DEPTH_CHUNK // 2)
    check_depth(b"[" + pairs + b"[" * (MAX_DEPTH - 1))
    with pytest.raises(BadInput):
        check_depth(b"[" + pairs + b"[" * MAX_DEPTH)


#: Each with what is wrong beside the shape: an encoding that is none, or a size of the JSON that the body has not.
BINARY = "inference-header-content-length"
WRONG: list[tuple[bytes, dict[str, str], type[Exception]]] = [
    (b"not compressed", {"content-encoding": "gzip"}, BadInput),
    (gzipped(b"{}")[:-4], {"content-encoding": "gzip"}, BadInput),
    (gzipped(b"{}") + gzipped(v2_body([1])), {"content-encoding": "gzip"}, BadInput),
    (gzipped(bytes(MAX_BODY_BYTES + 1)), {"content-encoding": "gzip"}, TooLarge),
    *((v2_body([3]), {"content-encoding": name}, UnsupportedType) for name in ("br", "gzip, gzip", "GZIP")),
    *(
        (v2_body([1], data=[1]), {BINARY: size}, BadInput)
        for size in ("1_0", "+5", " 5", "5 ")  # Python's int() takes each
    ),
    (b'{"inputs": []}', {BINARY: "15"}, BadInput),
    (gzipped(b'{"inputs": []}'), {BINARY: "15", "content-encoding": "gzip"}, BadInput),
]


@pytest.mark.parametrize(("body", "headers", "error"), WRONG)
def test_a_body_unlike_its_headers_is_refused(body: bytes, headers: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_json(body, headers, MAX_BODY_BYTES)


#: JSON that is of no number's type.
NO_NUMBERS = ['"1"', "null", "true", "{}", '{"a":1}']


def values(datatype: str) -> tuple[list[object], list[object]]:
    """Return JSON values that a datatype has, and some that it has not."""
    if datatype == "BOOL":
        return ["true", "false"], ["0", "1", "2", '"true"', "null", "{}"]
    if datatype == "BYTES":
        return ['"a"', '"ü\\u0000"'], ["1", "null", "true", "{}", '{"a":"b"}', "1.5"]
    if "INT" in datatype:
        low, high = int(np.iinfo(datatype.lower()).min), int(np.iinfo(datatype.lower()).max)
        return [low, high, 0], [low - 1, high + 1, 2**64, -(2**70), "1.5", "1e30", *NO_NUMBERS]
    beyond = {"FP16": ["70000", "-1e5"], "BF16": ["3.4e38"], "FP32": ["1e300", "-3.5e38"], "FP64": []}[
        datatype
    ]
    infinite = ["1e400", "NaN", "Infinity", "-Infinity"]
    return ["0.5", "-1", "6e4", "1e-400"], [*beyond, *infinite, *NO_NUMBERS]


def body(datatype: str, data: str, shape: object = (1,)) -> bytes:
    tensor = f'{{"name":"x","shape":{json.dumps(shape)},"datatype":"{datatype}","data":{data}}}'
    return f'{{"parameters":{{}},"inputs":[{{"name":"first"}},{tensor}]}}'.encode()


def check(content: bytes) -> None:
    check_json(content, {}, 2**25, has_tensors=True)


def refused(content: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        check(content)
    assert caught.value.details.get("field", "inputs[1].data") == "inputs[1].data"


@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_value_of_its_datatype_passes_and_any_other_is_refused(datatype: str) -> None:
    good, wrong = values(datatype)
    for value in good:
        check(body(datatype, f"[{value}]"))
    for value in wrong:
        refused(body(datatype, f"[{value}]"))


@pytest.mark.parametrize(
    ("shape", "taken", "wrong"),
    [
        ([2, 2], ["[1,2,3,4]", "[[1,2],[3,4]]"], ["[[1,2],[3]]", "[1,[2]]", "[[1],2]", "[[1,2],[3,[4]]]"]),
        ([1, 2], ["[[[1],[2]]]"], ["[1,2,3]", "5", "{}", '"1"', "null"]),
        ([0, 3], ["[]"], ["[1]"]),
    ],
)
def test_values_are_flat_or_nested_and_as_many(shape: list[int], taken: list[str], wrong: list[str]) -> None:
    for data in taken:
        check(body("INT32", data, shape))
    for data in wrong:
        refused(body("INT32", data, shape))


def test_nan_is_refused_also_where_the_inputs_come_first() -> None:
    with pytest.raises(BadInput):
        check(b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}],"parameters":{}}')


def test_the_json_before_tensors_is_checked_too() -> None:
    header = body("UINT8", "[256]")
    with pytest.raises(BadInput):
        check_json(header + b"\xff" * 9, {"inference-header-content-length": str(len(header))}, 2**25, True)
    check_json(b"\xff", {"inference-header-content-length": "0"}, 2**25, True)
    check_json(b"no JSON of a tensor", {}, 2**25)


def classes_of(text: bytes) -> list[object]:
    return asked_classes(orjson.loads(text), text)


CLASSES = b'{"inputs":[],"outputs":[{"name":"y","parameters":{"classification":1}}]}'


@pytest.mark.parametrize(
    "text",
    [
        CLASSES,
        CLASSES.replace(b"classif", b"cl\\u0061ssif"),
        CLASSES.replace(b'"outputs":', b'"outputs":[],"outputs":'),
        CLASSES.replace(b'"outputs":', b'"outputs":[{"name":"x","name":"x"}],"\\u006futputs":'),
        CLASSES.replace(b"1}", b'1},"a":' + b"[" * 990 + b"]" * 990),
    ],
)
def test_classes_of_an_output_without_numbers_are_refused_however_they_are_written(text: bytes) -> None:
    try:
        assert "y" in classes_of(text)
    except BadInput:
        assert text != CLASSES


@pytest.mark.parametrize("other", [{"name": "x"}, {"name": ["y"]}, {"name": "y", "parameters": []}, 5])
def test_an_output_without_numbers_may_stand_beside_one_with_classes(other: Any) -> None:
    outputs = [other, {"name": "x", "parameters": {"classification": 1}}, {"name": "y"}]
    assert classes_of(json.dumps({"inputs": [], "outputs": outputs}).encode()) == ["x"]


def test_classes_are_not_asked_where_an_input_has_no_values() -> None:
    outputs = [{"name": "x", "parameters": {"classification": 1}}]
    with pytest.raises(BadInput):
        classes_of(v2_body([0, "no size"], outputs))
    assert classes_of(v2_body([0, "no size"], [{"name": "classification"}])) == []


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0"])
def test_what_a_request_for_classes_takes_beyond_its_reading_is_bounded(value: bytes) -> None:
    text = CLASSES.replace(b"[]", b"[" + b",".join([value] * (2 * 10**6 // (len(value) + 1))) + b"]")
    request = orjson.loads(text)
    began = time.process_time()
    with suppress(BadInput):
        asked_classes(request, text)
    assert time.process_time() - began < 0.06


def test_the_model_is_not_asked_for_its_outputs_without_need() -> None:
    words = v2_body([1], data=["classification", '"classification":'])
    for body in (v2_body([1], data=[1]), words, words.replace(b"{", b'{"a":{"b":1},', 1)):
        assert classes_of(body) == []


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", "7"), ("FP32", "0.5"), ("BYTES", '""')])
def test_2_mb_take_bounded_processor_time(datatype: str, value: str) -> None:
    count = 2 * 10**6 // (len(value) + 1)
    content: Any = body(datatype, "[" + ",".join([value] * count) + "]", [count])
    began = time.process_time()
    check(content)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("dimensions", range(1, 9))
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_large_right_tensor_is_taken_whatever_its_dimensions(
    datatype: str, dimensions: int, place: str
) -> None:
    """Of size one but for one of them, with a character or few for each value: as lists within lists, and flat."""
    count = LARGE_JSON_BYTES
    short: dict[str, Any] = {"BOOL": True, "BYTES": ""}
    values = [short.get(datatype, 1)] * count
    shape = [count if place == "first" else 1, *[1] * (dimensions - 1)]
    shape[-1] = shape[-1] if place == "first" else count
    for data in (values, np.array(values, object).reshape(shape).tolist()):
        tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
        body = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
        assert len(body) > LARGE_JSON_BYTES
        check_json(body, {}, 2**25, has_tensors=True)


@pytest.mark.parametrize("dimensions", range(1, 9))
def test_a_large_tensor_without_a_value_is_taken(dimensions: int) -> None:
    shape = [LARGE_JSON_BYTES, *[1] * (dimensions - 1)]
    shape[-1] = 0
    data = np.zeros(shape).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    check_json(json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode(), {}, 2**25, has_tensors=True)
