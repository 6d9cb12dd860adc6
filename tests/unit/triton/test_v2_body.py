"""No value of a v2 request in JSON is cast: it fits its datatype, or it is a 400 with the field."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from sm.errors import BadInput
from sm.triton.http_proxy import check_json
from sm.triton.v2_body import DATATYPES

INTEGERS = [name for name in DATATYPES if "INT" in name]
FLOATS = [name for name in DATATYPES if name[:2] in ("FP", "BF")]
#: JSON that is of no number's type.
NO_NUMBERS = ['"1"', "null", "true", "{}", '{"a":1}']


def body(datatype: str, data: str, shape: object = (1,)) -> bytes:
    tensor = f'{{"name":"x","shape":{json.dumps(shape)},"datatype":"{datatype}","data":{data}}}'
    return f'{{"parameters":{{}},"inputs":[{{"name":"first"}},{tensor}]}}'.encode()


def check(content: bytes) -> None:
    check_json(content, {}, 2**25, has_tensors=True)


def refused(content: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        check(content)
    assert caught.value.details.get("field", "inputs[1].data") == "inputs[1].data"


@pytest.mark.parametrize("datatype", INTEGERS)
def test_an_integer_in_the_range_passes_and_any_other_value_is_refused(datatype: str) -> None:
    limits = np.iinfo(datatype.lower())
    for number in (limits.min, limits.max, 0):
        check(body(datatype, f"[{number}]"))
    beyond = [str(int(limits.min) - 1), str(int(limits.max) + 1), str(2**64), str(-(2**70))]
    for value in (*beyond, "1.5", "1e30", *NO_NUMBERS):
        refused(body(datatype, f"[{value}]"))


@pytest.mark.parametrize("datatype", FLOATS)
def test_a_number_in_the_range_passes_and_any_other_value_is_refused(datatype: str) -> None:
    for value in ("0.5", "-1", "6e4", "1e-400"):
        check(body(datatype, f"[{value}]"))
    beyond = {"FP16": ["70000", "-1e5"], "BF16": ["3.4e38"], "FP32": ["1e300", "-3.5e38"], "FP64": []}[
        datatype
    ]
    for value in (*beyond, "1e400", "NaN", "Infinity", "-Infinity", *NO_NUMBERS):
        refused(body(datatype, f"[{value}]"))


def test_truth_values_and_texts_are_what_they_are() -> None:
    check(body("BOOL", "[true,false]", [2]))
    check(body("BYTES", '["a","ü\\u0000"]', [2]))
    for value in ("0", "1", "2", '"true"', "null", "{}"):
        refused(body("BOOL", f"[{value}]"))
    for value in ("1", "null", "true", "{}", '{"a":"b"}', "1.5"):
        refused(body("BYTES", f"[{value}]"))


@pytest.mark.parametrize(
    ("shape", "taken", "wrong"),
    [
        ([2, 2], ["[1,2,3,4]", "[[1,2],[3,4]]"], ["[[1,2],[3]]", "[1,[2]]", "[[1],2]", "[[1,2],[3,[4]]]"]),
        ([1, 2], ["[[[1],[2]]]"], ["[1,2,3]", "5", "{}", '"1"', "null"]),
        ([0, 3], ["[]"], ["[1]"]),
    ],
)
def test_values_are_flat_or_nested_and_of_the_shapes_number(
    shape: list[int], taken: list[str], wrong: list[str]
) -> None:
    for data in taken:
        check(body("INT32", data, shape))
    for data in wrong:
        refused(body("INT32", data, shape))


def test_nan_is_refused_wherever_inputs_stands() -> None:
    for form in ('{"inputs":[%s],"parameters":{}}', '{"parameters":{},"inputs":[%s]}'):
        with pytest.raises(BadInput):
            check((form % '{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}').encode())


def test_the_json_before_tensors_is_checked_too() -> None:
    header = body("UINT8", "[256]")
    with pytest.raises(BadInput):
        check_json(header + b"\xff" * 9, {"inference-header-content-length": str(len(header))}, 2**25, True)
    check_json(b"\xff", {"inference-header-content-length": "0"}, 2**25, True)
    check_json(b"no JSON of a tensor", {}, 2**25)


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", "7"), ("FP32", "0.5"), ("BYTES", '""')])
def test_2_mb_take_bounded_processor_time(datatype: str, value: str) -> None:
    count = 2 * 10**6 // (len(value) + 1)
    content: Any = body(datatype, "[" + ",".join([value] * count) + "]", [count])
    began = time.process_time()
    check(content)
    assert time.process_time() - began < 2
