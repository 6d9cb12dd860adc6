"""The error for a result that JSON cannot hold says which part it is, and of which type; what can be is sent."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from sm.client import results
from sm.client.results import Picture, encodable
from sm.router.answers import dumps


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float16(0.5), 0.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.array(["a", b"b".decode()], object), ["a", "b"]),
        (np.arange(4).reshape(2, 2).T, [[0, 2], [1, 3]]),
        (np.array([1.5], np.float16), [1.5]),
        (np.array(["a", "ü"]), ["a", "ü"]),
        (np.array(1.5), 1.5),
    ],
)
def test_numpy_values_are_sent_as_json(value: object, expected: object) -> None:
    assert orjson.loads(orjson.dumps(value, default=encodable, option=orjson.OPT_SERIALIZE_NUMPY)) == expected


@dataclass
class Row:
    label: object


def itself() -> list[object]:
    contained: list[object] = []
    contained.append(contained)
    return contained


PILLOW: Any = type("PillowImage", (), {"__array_interface__": {}})


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"cat", "result is bytes: "),
        ([{"label": "a"}, {"label": b"cat"}], "result[1].label is bytes: "),
        ({"labels": np.array([["a", b"a"]], object)}, "result.labels[0][1] is bytes: "),
        ({"labels": np.array([b"a"])}, "result.labels[0] is bytes: "),
        ({"label": np.bytes_(b"a")}, "result.label is bytes_: "),
        ({"label": bytearray(b"a")}, "result.label is bytearray: "),
        ((1, Row(b"a")), "result[1].label is bytes: "),
        ({"my label": b"a"}, "result['my label'] is bytes: "),
        ({3: b"a"}, "result['3'] is bytes: "),
        ({"a": {b"k": 1}}, "result.a has a key that is bytes: "),
        ({1, 2}, "result is set: return a list"),
        ((number for number in range(3)), "result is generator: return a list"),
        (datetime.timedelta(1), "result is timedelta: return .total_seconds()"),
        (type("Tensor", (), {"tolist": lambda _: []})(), "result is Tensor: return .tolist()"),
        (type("Model", (), {"model_dump": lambda _: {}})(), "result is Model: return .model_dump()"),
        (PILLOW(), "result is PillowImage: return sm.client.Picture("),
        (2**64, "result is int: "),
        ("\ud800", "result is str: "),
        (1j, "result is complex: "),
        (object(), "result is object: "),
        (Picture(np.zeros((2, 3, 7), np.uint8)), "result is Picture: "),
        (itself(), "result is list: "),
    ],
)
def test_the_error_names_the_place_and_the_type_of_what_cannot_be_sent(value: object, place: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        dumps(value)
    assert f"it failed: {place}" in results.error("it failed", "result", value, dumps).sentence


def test_the_log_reason_has_the_position_without_names_from_the_result() -> None:
    error = results.error("it failed", "result", {"secret": [{"word": b"a"}]}, dumps)
    assert "result.secret[0].word is bytes" in error.sentence
    assert "result.…[0].… is bytes" in str(error.log_reason)
