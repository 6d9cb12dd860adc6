"""The codecs give the same results as the toolkit's; invalid bodies are the caller's error; nothing is unpickled.

The expected values were observed with ``sagemaker-inference`` 1.10.1 and NumPy 2.4.
"""

from __future__ import annotations

import json
import pickle
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sm.client.decode_budget import DECODED
from sm.errors import BadInput, ClientFailed, TooLarge, UnsupportedType
from sm.http.messages import CSV, JSON, JSON_LINES, NPY, NPZ
from tests.support.npy_bodies import encode_npy
from trireme_extensions.toolkit.codecs import decode, encode, read_sparse


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ("[[1, 2.5], [3, 4]]", JSON, np.array([[1, 2.5], [3, 4]])),
        ("3", JSON, np.array(3)),
        ('["a", "bc"]', JSON, np.array(["a", "bc"])),
        ("[NaN, 1]", JSON, np.array([np.nan, 1])),
        ("1,2\n3,4\n", CSV, np.array([[1, 2], [3, 4]])),
        (b"[1, 2]\n[3, 4]\n", JSON_LINES, np.array([[1, 2], [3, 4]])),
        ("1.5,2.0", CSV, np.array([1.5, 2])),
        ("a,b\nc,d", CSV, np.array([["a", "b"], ["c", "d"]])),
        ("1,a\n2,b", CSV, np.array([(1, "a"), (2, "b")], "i8,U1")),
        (encode_npy(np.ones((2, 3), np.float32)), NPY, np.ones((2, 3), np.float32)),
    ],
)
def test_a_body_is_decoded_to_the_same_array_as_in_the_toolkit(
    body: str | bytes, content_type: str, expected: np.ndarray[Any, Any]
) -> None:
    array = decode(body, content_type)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("value", "accept", "expected"),
    [
        (np.arange(3), JSON, "[0, 1, 2]"),
        ({"a": np.arange(2), "b": np.int64(1)}, JSON, '{"a": [0, 1], "b": 1}'),
        (np.array([np.nan]), JSON, "[null]"),
        ({"NaN": [np.inf, -np.inf, 'NaN "Infinity']}, JSON, r'{"NaN": [null, null, "NaN \"Infinity"]}'),
        (np.array([0.1], np.float32), JSON, "[0.10000000149011612]"),
        (np.arange(4).reshape(2, 2), JSON_LINES, "[0, 1]\n[2, 3]"),
        (np.arange(3), CSV, "0\n1\n2\n"),
        (np.arange(6).reshape(2, 3) / 4, CSV, "0.0,0.25,0.5\n0.75,1.0,1.25\n"),
        (["a", "b"], CSV, "a\nb\n"),
        ([1.5], NPY, encode_npy(np.array([1.5]))),
    ],
)
def test_a_prediction_is_encoded_as_in_the_toolkit(value: object, accept: str, expected: str | bytes) -> None:
    assert encode(value, accept) == expected


def test_a_pickle_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    class CreatesFile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "unpickled",)

    for body in (pickle.dumps(CreatesFile()), encode_npy(np.array([CreatesFile()], object))):
        with pytest.raises(BadInput):
            decode(body, NPY)
    assert not (tmp_path / "unpickled").exists()


#: Bodies that do not match their type, or of which a careless reader would use many times their memory.
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a long line": ("a" * 200_000 + "\n" + "b\n" * 3000, CSV),
    "a long cell": (",".join(["a" * 10_000] + ["b"] * 99) + "\n" + (",".join(["b"] * 100) + "\n") * 300, CSV),
    "a long cell in each column": (
        "\n".join(",".join("a" * 2000 if row == cell else "b" for cell in range(200)) for row in range(200)),
        CSV,
    ),
    "a long cell beside numbers": ("1," + "a" * 200_000 + "\n" + "1,b\n" * 3000, CSV),
    "lines of lists": (b"[[],[]]\n" * 500_000, JSON_LINES),
    "blank lines": (b"\n" * 400_000, JSON_LINES),
    "empty JSON": ("", JSON),
    "truncated JSON": ("[1,", JSON),
    "deep JSON": ("[" * 2000, JSON),
    "ragged JSON": ("[[1], [2, 3]]", JSON),
    "one long string": (json.dumps(["a" * 10**6, *["b"] * 10**5]), JSON),
    "empty CSV": ("", CSV),
    "comment CSV": ("# nothing\n", CSV),
    "ragged CSV": ("1,2\n3", CSV),
    "npy": (b"junk", NPY),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_is_refused_before_much_memory_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DECODED, "limit", 20 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises((TooLarge, BadInput)):
            decode(*REFUSED[name])
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("content_type", [JSON, CSV, JSON_LINES, NPZ])
@given(
    st.binary()
    | st.text().map(str.encode)
    | JSON_VALUES.map(json.dumps).map(str.encode)
    | st.text(alphabet="0123456789:.,-eE#\n\r\t \"'[]{}qidaü\0\x85\u2028").map(str.encode)
)
@example(b"[" * 5000)
@settings(max_examples=20)
def test_any_body_is_decoded_or_refused(content_type: str, body: bytes) -> None:
    text = body.decode(errors="replace") if content_type in (JSON, CSV) else body
    try:
        decode(text, content_type)
    except (BadInput, TooLarge, UnsupportedType) as error:
        assert "\n" not in error.sentence


@pytest.mark.parametrize(
    ("value", "accept"), [(object(), JSON), (3, CSV), (np.zeros((1, 1, 1)), CSV), (np.array([{}]), NPY)]
)
def test_a_prediction_that_the_format_cannot_hold_is_the_scripts_error(value: object, accept: str) -> None:
    with pytest.raises(ClientFailed, match=accept):
        encode(value, accept)


def test_a_sparse_body_without_scipy_is_a_415(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(UnsupportedType):
        read_sparse(b"PK")
