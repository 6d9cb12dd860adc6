"""Header blocks of HTTP/2 (RFC 7541), in the forms that gRPC servers use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

#: Entries of the table of headers that everybody knows.
STATIC_TABLE_ENTRIES = 61


def head(path: str, authority: str, metadata: Mapping[str, str]) -> bytes:
    """The header block of a call but for its time: POST, http, and what follows as literals."""
    named = {"te": "trailers", **metadata}
    return b"".join(
        (
            # Entries of RFC 7541's table: 3 and 6 whole, of 4, 1 and 31 the name.
            b"\x83\x86\x04" + literal(path),
            b"\x01" + literal(authority),
            b"\x0f\x10" + literal("application/grpc"),
            *(b"\x00" + literal(name) + literal(value) for name, value in named.items()),
        )
    )


def literal(text: str) -> bytes:
    content = text.encode()
    return _number(len(content), 7) + content


def _number(value: int, bits: int) -> bytes:
    """RFC 7541's integers, the bits before them 0."""
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
    """The headers whose names stand in a block that refers to no table but the fixed one, as was asked for.

    ValueError or IndexError for what this cannot read.
    """
    return dict(Block(block).named())


class Block:
    """A header block, read from its start."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    def named(self) -> Iterator[tuple[bytes, bytes]]:
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
