"""Make request bodies in NumPy's .npy format, valid ones and others."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

DTYPES = ("|b1", "<f2", ">f4", "<f8", "|u1", "|i1", "<i4", ">i8", "<u8", "<c8", "<U2", "|S3", "<M8[D]", "<m8[ns]")  # fmt: skip
#: Arrays of any plain values, also of rows with fields, of up to 4 dimensions, also empty.
ARRAYS: st.SearchStrategy[NDArray[Any]] = st.builds(
    lambda dtype, shape: np.resize(
        np.arange(9).astype(dtype) if isinstance(dtype, str) else np.ones(9, dtype), shape
    ),
    st.sampled_from([*DTYPES, [("a", "<i4"), ("b", "<f8", (1,))]]),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
)
#: What a header may say of the type, the order and the shape: in place of "<f8", False and (1,).
DESCRIPTIONS = (
    *("'<f8'", "'>i8'", "'|b1'", "'<U3'", "('<f8', (2,))", "[('a', '<i4'), ('b', '<f8', (1,))]"),
    *("'|O'", "[('a', 'O')]", "'<V0'", "'<U0'", "'<U1000000000'", "('<f8', (1000000000000,))"),
    *("'what'", "7", "None"),
)
ORDERS = ("False", "True", "False", "1", "'C'")
SHAPES = (
    *("()", "(1,)", "(2, 3)", "(0,)", "(0, 3)", "(1, 0, 2)", "(1,1,1,1,1,1,1,1)", "1", "None"),
    *("(1000000000000,)", f"({2**62}, {2**62})", f"(0, {2**62})", "(-1,)", "(-2, -2)"),
    *("(True,)", "(1.0,)", "(9**9**9,)", "(" + "1," * 65 + ")", "(" + "9" * 99 + ",)"),
)


def encode_npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=True)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Return a body with a header of that text, as long as it is."""
    header_size = len(text.encode()).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + header_size + text.encode() + data


def header(descr: str = "'<f8'", order: str = "False", shape: str = "(1,)", more: str = "") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {more}}}\n"


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """Draw a body whose header may claim anything, and which may be damaged anywhere."""
    if draw(st.booleans()):
        body = bytearray(encode_npy(draw(ARRAYS), draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))))
    else:
        text = header(*(draw(st.sampled_from(each)) for each in (DESCRIPTIONS, ORDERS, SHAPES)))
        version = draw(st.sampled_from([b"\1\0", b"\2\0", b"\3\0", b"\x09\0"]))
        body = bytearray(with_header(text, draw(st.binary(max_size=60)), version))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        removed = draw(st.integers(0, 9))
        body[at : at + removed] = draw(
            st.binary(max_size=2) | st.sampled_from([b"(", b"'", b"-", b"\\", b"L", b"9" * 20])
        )
    return bytes(body)
