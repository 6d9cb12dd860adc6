"""Header blocks of HTTP/2 (RFC 7541), in the forms that gRPC servers use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

#: Entries of HPACK's static table.
STATIC_TABLE_ENTRIES = 61


def head(path: str, authority: str, metadata: Mapping[str, str]) -> bytes:
    """Encode the headers of a call except its time-out: POST, http, and the others as literals."""
    headers = {"te": "trailers", **metadata}
    return b"".join(
        (
            # Indexes of the static table: 3 and 6 with their values, 4, 1 and 31 for the name only.
            b"\x83\x86\x04" + literal(path),
            b"\x01" + literal(authority),
            b"\x0f\x10" + literal("application/grpc"),
            *(b"\x00" + literal(name) + literal(value) for name, value in headers.items()),
        )
    )


def literal(text: str) -> bytes:
    content = text.encode()
    return _number(len(content), 7) + content


def _number(value: int, bits: int) -> bytes:
    """Encode an integer (RFC 7541, section 5.1) whose prefix is 0."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    coded, value = [most], value - most
    while value >= 128:
        coded.append(value & 127 | 128)
        value >>= 7
    return bytes((*coded, value))


@lru_cache(maxsize=64)  # most blocks say the same
def fields(block: bytes) -> Mapping[bytes, bytes]:
    """Decode the headers of a block that refers only to the static table, as SETTINGS asked for.

    Raises ValueError or IndexError for anything else.
    """
    return dict(Block(block).decode_fields())


class Block:
    """A header block with a read position."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    def decode_fields(self) -> Iterator[tuple[bytes, bytes]]:
        while self._at < len(self._block):
            first = self._block[self._at]
            if first & 0x80:  # a header of the fixed table
                _fixed(self._integer(7))
            elif first & 0xE0 == 0x20:  # the size of the table that there is none of
                self._integer(5)
            else:
                index = _fixed(self._integer(6 if first & 0x40 else 4))
                yield b"" if index else self._string(), self._string()

    def _integer(self, bits: int) -> int:
        most = (1 << bits) - 1
        value, shift = self._block[self._at] & most, 0
        self._at += 1
        if value < most:
            return value
        while True:
            byte = self._block[self._at]
            self._at += 1
            value += (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _string(self) -> bytes:
        coded = self._block[self._at] & 0x80
        size = self._integer(7)
        text = self._block[self._at : self._at + size]
        self._at += size
        if len(text) < size:
            raise ValueError("a string without its end")
        if coded:
            raise ValueError("a string in Huffman's code")
        return text


def _fixed(index: int) -> int:
    if index > STATIC_TABLE_ENTRIES:
        raise ValueError("a table that nobody keeps")
    return index
