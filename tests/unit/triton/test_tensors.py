from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sm.triton.tensors import DTYPES, datatype, from_bytes, to_bytes


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_are_decoded_as_they_were_encoded(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DTYPES[name])
    assert datatype(array) == name
    decoded = from_bytes(to_bytes(array), name, array.shape)
    assert decoded.dtype == array.dtype
    assert np.array_equal(decoded, array)
    assert decoded.flags.writeable


@pytest.mark.parametrize(
    "array",
    [np.array([["ä", ""], ["c", "d"]]), np.array([[b"a", b"\0b"], ["ü", 1]], object)],
    ids=["texts", "objects"],
)
def test_strings_are_decoded_as_bytes(array: NDArray[Any]) -> None:
    expected = [
        [item if isinstance(item, bytes) else str(item).encode() for item in row] for row in array.tolist()
    ]
    assert datatype(array) == "BYTES"
    assert from_bytes(to_bytes(array), "BYTES", array.shape).tolist() == expected
