"""A ``.npy`` body is an array or an error of ours, whatever was done to it, and takes no more memory than it has."""

from __future__ import annotations

import io
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sm.client.npy import read_npy
from sm.client.payloads import TensorPayload
from sm.errors import BadInput
from sm.plugins.toolkit import codecs
from tests.support.npy_bodies import ARRAYS, mutated, npy

SEED, BODIES = 13, 6000


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    size = len(text.encode()).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode() + data


def of(descr: object, shape: object, data: bytes = b"", order: object = False) -> bytes:
    return with_header(f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape}, }}\n", data)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("version", [None, (2, 0), (3, 0)])
def test_what_numpy_writes_is_read(name: str, version: tuple[int, int] | None) -> None:
    array = ARRAYS[name]
    found = read_npy(npy(array, version))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_what_comes_behind_an_array_is_ignored_as_numpy_does() -> None:
    np.testing.assert_array_equal(read_npy(npy(ARRAYS["float"]) + b"more"), ARRAYS["float"])


def archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3))
    return stream.getvalue()


HOSTILE = {
    "nothing": b"",
    "no npy": b"hello",
    "an archive": archive(),
    "a pickle": npy(np.array([{"a": 1}], object)),
    "an object within": of([("a", "O")], (1,), bytes(8)),
    "truncated": npy(np.arange(100))[:-10],
    "version 9": b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16,
    "header longer than the body": b"\x93NUMPY\x01\x00\xff\xff{",
    "header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "header of 100 KB": with_header(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}}{' ' * 100_000}", version=b"\x02\x00"
    ),
    "terabytes": of("<f8", (10**12,), bytes(8)),
    "terabytes of nothing": of("<V0", (10**15,)),
    "texts of no length": of("<U0", (10**15,)),
    "terabytes in one element": of(("<f8", (10**12,)), (1,), bytes(8)),
    "texts of gigabytes": of("<U1000000000", (1,)),
    "a shape that overflows": of("<f8", (2**62, 2**62), bytes(8)),
    "a large dimension beside an empty one": of("<f8", (0, 2**62)),
    "a negative dimension": of("<f8", (-1,), bytes(8)),
    "two negative dimensions": of("<f8", (-2, -2), bytes(32)),
    "true as a dimension": of("<f8", (True,), bytes(8)),
    "a float as a dimension": of("<f8", (1.0,), bytes(8)),
    "no tuple": of("<f8", 1, bytes(8)),
    "33 dimensions": of("<f8", (1,) * 65, bytes(8)),
    "no dtype": of("what", (1,), bytes(8)),
    "a number as dtype": of(7, (1,), bytes(8)),
    "a dtype of a thousand levels": of("<f8", (1,)).replace(
        b"'<f8'", b"[('a'," * 900 + b"'<f8'" + b")]" * 900
    ),
    "no order": of("<f8", (1,), bytes(8), order=1),
    "code": with_header("__import__('os').abort()"),
    "parentheses": with_header("(" * 9000),
    "minus signs": with_header("-" * 9000 + "1"),
    "powers": with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (9**9**9,)}"),
    "digits": with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ",)}"),
    "no dict": with_header("['descr', 'fortran_order', 'shape']"),
    "more keys": with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), 'x': 1}"),
    "a zero byte": with_header("{'descr': '<f4'\0}"),
    "no UTF-8": b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xff\xff\xff",
    "an escape": with_header(r"{'descr': '\x3cf4\q', 'fortran_order': False, 'shape': (0,)}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_plain_array_is_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=r"not a \.npy array"):
            read_npy(HOSTILE[name])


@pytest.mark.parametrize(
    "read",
    [
        read_npy,
        lambda body: TensorPayload.model_validate(TensorPayload.fields_of_raw(body)).array,
        lambda body: codecs.decode(body, codecs.NPY),
    ],
    ids=["reader", "payload", "toolkit"],
)
def test_a_mutated_body_is_an_array_or_refused_and_takes_no_memory(read: Callable[[bytes], Any]) -> None:
    outcomes = {"array": 0, "refused": 0}
    began = time.process_time()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for body in mutated(SEED, BODIES):
                try:
                    assert isinstance(read(body), np.ndarray)
                    outcomes["array"] += 1
                except BadInput as error:
                    assert "\n" not in error.sentence
                    outcomes["refused"] += 1
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 100, outcomes
    assert time.process_time() - began < 60
