"""Header blocks against the library ``hpack``: read right or not at all, and written as it reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from sm.triton.hpack import decode_headers, encode_call_headers

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=30).map(str.encode)
VALUES = st.binary(max_size=300)
HEADERS = st.lists(
    st.tuples(
        NAMES | st.sampled_from([b"grpc-status", b"grpc-message", b"content-type", b":status"]), VALUES
    ),
    max_size=12,
)
#: Names of RFC 7541's table. What stands under them is nothing that the wire needs, and is skipped.
TABLE = {name for name, _ in HeaderTable.STATIC_TABLE}


def named(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {bytes(name): bytes(value) for name, value in headers if name and bytes(name) not in TABLE}


@given(HEADERS)
def test_what_hpack_encodes_as_grpc_servers_do_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    for _ in range(2):
        assert named(decode_headers(encoder.encode(headers, huffman=False)).items()) == named(headers)


@given(HEADERS, st.booleans(), st.sampled_from([0, 4096]))
def test_other_encodings_are_read_right_or_not_at_all(
    headers: list[tuple[bytes, bytes]], huffman: bool, table_bytes: int
) -> None:
    encoder = Encoder()
    encoder.header_table_size = table_bytes
    for _ in range(2):
        with contextlib.suppress(ValueError, IndexError):
            assert named(decode_headers(encoder.encode(headers, huffman=huffman)).items()) == named(headers)


@given(st.binary(max_size=60) | HEADERS.map(lambda headers: Encoder().encode(headers, huffman=False)[:-1]))
def test_no_block_is_read_as_other_headers_than_hpack_reads(content: bytes) -> None:
    try:
        expected = named(Decoder().decode(content, raw=True))
    except HPACKError:
        expected = None
    with contextlib.suppress(ValueError, IndexError):
        found = named(decode_headers(content).items())
        assert expected is None or found == expected


@given(
    st.text("abcdefghijklmnopqrstuvwxyz/.ABC", max_size=300),
    st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1), st.text(max_size=200), max_size=5),
)
def test_hpack_reads_the_head_of_a_call(path: str, metadata: dict[str, str]) -> None:
    assert list[object](Decoder().decode(encode_call_headers(path, "127.0.0.1:1", metadata))) == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:1"),
        ("content-type", "application/grpc"),
        *{"te": "trailers", **metadata}.items(),
    ]
