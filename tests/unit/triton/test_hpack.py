"""Header blocks compared with the library ``hpack``: decoded as it does or refused, and encoded so that it reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError
from hpack.table import HeaderTable
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.triton.wire import decode_headers, encode_call_headers

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=30).map(str.encode)
VALUES = st.binary(max_size=300)
HEADERS = st.lists(
    st.tuples(
        NAMES | st.sampled_from([b"grpc-status", b"grpc-message", b"content-type", b":status"]), VALUES
    ),
    max_size=12,
)
#: Names of RFC 7541's static table. gRPC does not need their headers, so the decoder skips them.
STATIC_NAMES = {name for name, _ in HeaderTable.STATIC_TABLE}


EXAMPLES = settings(max_examples=50)


def without_static_names(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {bytes(name): bytes(value) for name, value in headers if name and bytes(name) not in STATIC_NAMES}


@given(HEADERS, st.booleans(), st.sampled_from([0, 4096]))
@EXAMPLES
def test_headers_are_decoded_or_other_encodings_than_grpc_servers_use_refused(
    headers: list[tuple[bytes, bytes]], huffman: bool, table_bytes: int
) -> None:
    encoder = Encoder()
    encoder.header_table_size = table_bytes
    as_grpc = not huffman and not table_bytes
    for _ in range(2):
        with contextlib.nullcontext() if as_grpc else contextlib.suppress(ValueError, IndexError):
            decoded = decode_headers(encoder.encode(headers, huffman=huffman))
            assert without_static_names(decoded.items()) == without_static_names(headers)


@given(st.binary(max_size=60) | HEADERS.map(lambda headers: Encoder().encode(headers, huffman=False)[:-1]))
@EXAMPLES
def test_any_bytes_are_decoded_as_hpack_does_or_refused(content: bytes) -> None:
    try:
        expected = without_static_names(Decoder().decode(content, raw=True))
    except HPACKError:
        expected = None
    with contextlib.suppress(ValueError, IndexError):
        decoded = without_static_names(decode_headers(content).items())
        assert expected is None or decoded == expected


@given(
    st.text("abcdefghijklmnopqrstuvwxyz/.ABC", max_size=300),
    st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1), st.text(max_size=200), max_size=5),
)
@EXAMPLES
def test_the_headers_of_a_call_are_encoded_as_hpack_reads_them(path: str, metadata: dict[str, str]) -> None:
    assert list[object](Decoder().decode(encode_call_headers(path, "127.0.0.1:1", metadata))) == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:1"),
        ("content-type", "application/grpc"),
        *{"te": "trailers", **metadata}.items(),
    ]
