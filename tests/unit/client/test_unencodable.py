"""The error for a result that JSON cannot hold says which part it is, its type and what to return instead."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sm.client import results
from sm.client.results import Picture
from sm.router.answers import dumps


@dataclass
class RowWithLabel:
    label: object


class Tensor:
    """Has the method of a torch tensor."""

    def tolist(self) -> list[int]:
        return []


class Model:
    """Has the method of a pydantic model."""

    def model_dump(self) -> dict[str, int]:
        return {}


class PillowImage:
    __array_interface__: Any = {}


def error_sentence(value: object) -> str:
    """Return the error for ``value``, which must not be encodable."""
    with pytest.raises((TypeError, ValueError)):
        dumps(value)
    return results.error("the result cannot be sent", "result", value, dumps).sentence


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"cat", "result is bytes: decode text with .decode()"),
        ({"label": b"cat"}, "result.label is bytes: decode"),
        ([{"label": "a"}, {"label": b"cat"}], "result[1].label is bytes: decode"),
        ({"labels": np.array([b"a"], object)}, "result.labels[0] is bytes: decode"),
        ({"labels": np.array([["a", b"a"]], object)}, "result.labels[0][1] is bytes: decode"),
        ({"labels": np.array([b"a"])}, "result.labels[0] is bytes: decode"),
        ({"label": np.bytes_(b"a")}, "result.label is bytes_: decode"),
        ({"label": bytearray(b"a")}, "result.label is bytearray: decode"),
        ((1, RowWithLabel(b"a")), "result[1].label is bytes: decode"),
        ({"my label": b"a"}, "result['my label'] is bytes: decode"),
        ({3: b"a"}, "result['3'] is bytes: decode"),
        ({"a": {b"k": 1}}, "result.a has a key that is bytes: use text"),
    ],
)
def test_the_error_for_bytes_names_their_position(value: object, expected: str) -> None:
    assert f"the result cannot be sent: {expected}" in error_sentence(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1, 2}, "is set: return a list"),
        ((number for number in range(3)), "is generator: return a list"),
        (datetime.timedelta(1), "is timedelta: return .total_seconds()"),
        (Tensor(), "is Tensor: return .tolist()"),
        (Model(), "is Model: return .model_dump()"),
        (PillowImage(), "is PillowImage: return sm.client.Picture("),
        (2**64, "is int: beyond 64 bits"),
        ("\ud800", "is str: with surrogates"),
        (1j, "is complex: return .real and .imag"),
        (object(), "is object: return a dict, list, text, number, None or a NumPy array"),
        (Picture(np.zeros((2, 3, 7), np.uint8)), "is Picture: its pixels must be uint8 [height, width, 3]"),
    ],
)
def test_the_error_for_each_type_says_what_to_return(value: object, expected: str) -> None:
    assert f"result.x {expected}" in error_sentence({"x": value})


def test_a_list_that_contains_itself_is_reported_as_such() -> None:
    self_containing: list[object] = []
    self_containing.append(self_containing)
    assert "result is list: nested too deeply, or contains itself" in error_sentence(self_containing)


def test_the_log_reason_has_the_position_without_names_from_the_result() -> None:
    error = results.error("it cannot be sent", "result", {"secret": [{"word": b"a"}]}, dumps)
    assert "result.secret[0].word is bytes" in error.sentence
    assert error.log_reason is not None
    assert "result.…[0].… is bytes: decode" in error.log_reason
