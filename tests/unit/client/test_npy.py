"""Any ``.npy`` body is read as an array or refused as bad input, and takes no more memory than its size."""

from __future__ import annotations

import ast
import gc
import io
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sm.client.payloads import TensorPayload, read_npy
from sm.errors import BadInput
from sm.plugins.toolkit import codecs
from tests.support.npy_bodies import ARRAYS, encode_npy, mutated_bodies

SEED, BODIES = 13, 6000
#: What reading one of the mutated bodies may take.
MAX_BYTES = 2 * 2**20


def npy_with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header_size = len(text.encode()).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + header_size + text.encode() + data


def npy_with(descr: object, shape: object, data: bytes = b"", order: object = False) -> bytes:
    return npy_with_header(f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape}, }}\n", data)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("version", [None, (2, 0), (3, 0)])
def test_arrays_that_numpy_writes_are_read(name: str, version: tuple[int, int] | None) -> None:
    array = ARRAYS[name]
    read = read_npy(encode_npy(array, version))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


def test_bytes_after_the_array_are_ignored_as_numpy_ignores_them() -> None:
    np.testing.assert_array_equal(read_npy(encode_npy(ARRAYS["float"]) + b"more"), ARRAYS["float"])


def npz_archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3))
    return stream.getvalue()


INVALID_BODIES = {
    "empty": b"",
    "not npy": b"hello",
    "npz archive": npz_archive(),
    "pickle": encode_npy(np.array([{"a": 1}], object)),
    "object field": npy_with([("a", "O")], (1,), bytes(8)),
    "truncated": encode_npy(np.arange(100))[:-10],
    "version 9": b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16,
    "header longer than the body": b"\x93NUMPY\x01\x00\xff\xff{",
    "header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "header of 100 KB": npy_with_header(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}}{' ' * 100_000}", version=b"\x02\x00"
    ),
    "terabytes": npy_with("<f8", (10**12,), bytes(8)),
    "terabytes of empty elements": npy_with("<V0", (10**15,)),
    "terabytes of empty texts": npy_with("<U0", (10**15,)),
    "terabytes in one element": npy_with(("<f8", (10**12,)), (1,), bytes(8)),
    "texts of gigabytes": npy_with("<U1000000000", (1,)),
    "a shape that overflows": npy_with("<f8", (2**62, 2**62), bytes(8)),
    "a large dimension beside an empty one": npy_with("<f8", (0, 2**62)),
    "a negative dimension": npy_with("<f8", (-1,), bytes(8)),
    "two negative dimensions": npy_with("<f8", (-2, -2), bytes(32)),
    "true as a dimension": npy_with("<f8", (True,), bytes(8)),
    "a float as a dimension": npy_with("<f8", (1.0,), bytes(8)),
    "shape is not a tuple": npy_with("<f8", 1, bytes(8)),
    "65 dimensions": npy_with("<f8", (1,) * 65, bytes(8)),
    "unknown dtype": npy_with("what", (1,), bytes(8)),
    "a number as dtype": npy_with(7, (1,), bytes(8)),
    "a dtype of a thousand levels": npy_with("<f8", (1,)).replace(
        b"'<f8'", b"[('a'," * 900 + b"'<f8'" + b")]" * 900
    ),
    "order is not a boolean": npy_with("<f8", (1,), bytes(8), order=1),
    "code": npy_with_header("__import__('os').abort()"),
    "parentheses": npy_with_header("(" * 9000),
    "minus signs": npy_with_header("-" * 9000 + "1"),
    "powers": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (9**9**9,)}"),
    "digits": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ",)}"),
    "header is not a dict": npy_with_header("['descr', 'fortran_order', 'shape']"),
    "unknown key": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), 'x': 1}"),
    "zero byte": npy_with_header("{'descr': '<f4'\0}"),
    "not UTF-8": b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xff\xff\xff",
    "invalid escape": npy_with_header(r"{'descr': '\x3cf4\q', 'fortran_order': False, 'shape': (0,)}"),
}


@pytest.mark.parametrize("name", INVALID_BODIES)
def test_a_body_that_is_no_plain_array_is_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=r"not a \.npy array"):
            read_npy(INVALID_BODIES[name])


@pytest.mark.parametrize(
    "read_body",
    [
        read_npy,
        lambda body: TensorPayload.model_validate(TensorPayload.fields_of_raw(body)).array,
        lambda body: codecs.decode(body, codecs.NPY),
    ],
    ids=["reader", "payload", "toolkit"],
)
def test_a_mutated_body_is_an_array_or_refused_and_takes_no_memory(read_body: Callable[[bytes], Any]) -> None:
    outcomes = {"array": 0, "refused": 0}

    def measure(body: bytes) -> tuple[str, int]:
        """Return what became of a body, and the bytes that it took at most."""
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        try:
            assert isinstance(read_body(body), np.ndarray)
            outcome = "array"
        except BadInput as error:
            assert "\n" not in error.sentence
            outcome = "refused"
        return outcome, tracemalloc.get_traced_memory()[1] - before

    started = time.process_time()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for body in mutated_bodies(SEED, BODIES):
                outcome, peak_bytes = measure(body)
                outcomes[outcome] += 1
                # Once in many thousand new names the interpreter enlarges its table of names by megabytes.
                assert peak_bytes < MAX_BYTES or measure(body)[1] < MAX_BYTES, body
        gc.collect()
        # That table is enlarged in ast.parse.
        without_names = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, ast.__file__)])
        assert sum(statistic.size for statistic in without_names.statistics("filename")) < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 100, outcomes
    assert time.process_time() - started < 60
