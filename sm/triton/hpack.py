"""Encode and decode header blocks of HTTP/2 (HPACK, RFC 7541), in the forms that gRPC servers use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

#: Entries of HPACK's static table.
STATIC_TABLE_ENTRIES = 61


def encode_call_headers(path: str, authority: str, metadata: Mapping[str, str]) -> bytes:
    """Encode the headers of a call, except its time-out."""
    headers = {"te": "trailers", **metadata}
    return b"".join(
        (
            # Static table: entries 3 (POST) and 6 (http) with their values; 4 (:path), 1 (:authority) and 31
            # (content-type) for the name only.
            b"\x83\x86\x04" + encode_string(path),
            b"\x01" + encode_string(authority),
            b"\x0f\x10" + encode_string("application/grpc"),
            *(b"\x00" + encode_string(name) + encode_string(value) for name, value in headers.items()),
        )
    )


def encode_string(text: str) -> bytes:
    """Encode a string literal without Huffman coding."""
    content = text.encode()
    return _encode_integer(len(content), 7) + content


def _encode_integer(value: int, bits: int) -> bytes:
    """Encode an integer (RFC 7541, section 5.1) with a prefix of ``bits``."""
    prefix_max = (1 << bits) - 1
    if value < prefix_max:
        return bytes((value,))
    encoded, value = [prefix_max], value - prefix_max
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


@lru_cache(maxsize=64)  # Most answers have the same headers.
def decode_headers(block: bytes) -> Mapping[bytes, bytes]:
    """Decode a header block. It refers only to the static table, because SETTINGS turned the dynamic one off.

    Raises:
        ValueError: The block has another form.
        IndexError: The block is truncated.
    """
    return dict(BlockReader(block).headers())


class BlockReader:
    """Decodes a header block."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    def headers(self) -> Iterator[tuple[bytes, bytes]]:
        while self._at < len(self._block):
            first = self._block[self._at]
            if first & 0x80:  # An entry of the static table: none of them matters here.
                _check_static(self._integer(7))
            elif first & 0xE0 == 0x20:  # A new size of the dynamic table, which is off.
                self._integer(5)
            else:  # A literal, whose name may be an entry of the static table.
                index = _check_static(self._integer(6 if first & 0x40 else 4))
                yield b"" if index else self._string(), self._string()

    def _integer(self, bits: int) -> int:
        prefix_max = (1 << bits) - 1
        value, shift = self._block[self._at] & prefix_max, 0
        self._at += 1
        if value < prefix_max:
            return value
        while True:
            byte = self._block[self._at]
            self._at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _string(self) -> bytes:
        is_huffman = self._block[self._at] & 0x80
        size = self._integer(7)
        text = self._block[self._at : self._at + size]
        self._at += size
        if len(text) < size:
            raise ValueError("a string without its end")
        if is_huffman:
            raise ValueError("a string in Huffman's code")
        return text


def _check_static(index: int) -> int:
    """Return the index of an entry of the static table."""
    if index > STATIC_TABLE_ENTRIES:
        raise ValueError("an entry of the dynamic table")
    return index
