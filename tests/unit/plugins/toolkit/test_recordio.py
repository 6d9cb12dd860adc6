"""SageMaker's protobuf records become rows; invalid bodies are the caller's error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sm.errors import BadInput
from sm.plugins.toolkit.codecs import read_recordio
from tests.support.recordio import FLOAT32, FLOAT64, INT32, encode_record


@pytest.mark.parametrize("datatype", [FLOAT32, FLOAT64, INT32], ids=["float32", "float64", "int32"])
def test_records_are_rows_with_or_without_keys(datatype: tuple[int, str]) -> None:
    rows = read_recordio(
        encode_record([1, 2, 3], kind=datatype) + encode_record([7, 8], keys=[0, 4], kind=datatype)
    )
    assert rows.values.tolist() == [1, 2, 3, 7, 8]
    assert rows.indices.tolist() == [0, 1, 2, 0, 4]
    assert rows.starts.tolist() == [0, 3, 5]


INVALID_BODIES = {
    "empty": (b"", "has no record"),
    "no magic number": (b"\0" * 8, "record 1 of the body does not begin as RecordIO does"),
    "cut off": (encode_record([1])[:-5], "record 1 of the body is truncated"),
    "second cut off": (encode_record([1]) + b"abc", "record 2 of the body is truncated"),
    "not protobuf": (struct.pack("<II", 0xCED7230A, 4) + b"\xff" * 4, "record 1 of the body is not a proto"),
    "no values": (encode_record([1], name=b"others"), "no features called 'values'"),
    "too few keys": (encode_record([1, 2], keys=[3]), "the keys of record 1 of the body do not fit"),
}


@pytest.mark.parametrize("name", INVALID_BODIES)
def test_the_error_for_an_invalid_record_names_its_position(name: str) -> None:
    body, reason = INVALID_BODIES[name]
    with pytest.raises(BadInput, match=reason):
        read_recordio(body)


@given(st.binary().map(lambda data: struct.pack("<II", 0xCED7230A, len(data)) + data) | st.binary())
@example(encode_record([1], keys=[1]))
def test_any_bytes_are_read_as_records_or_refused_as_bad_input(body: bytes) -> None:
    try:
        read_recordio(body)
    except BadInput as error:
        assert "\n" not in error.sentence
